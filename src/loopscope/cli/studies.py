"""`loopscope studies`: the tables and figures there are, one line each."""


def studies() -> str:
    """Name, what it shows, what a run must hold for it, and where it is in the paper."""
    from loopscope.studies.registry import FIGURES, TABLES

    parts = []
    for title, group in (("Tables", TABLES), ("Figures", FIGURES)):
        width = max(map(len, group))
        needs = max(len(study.needs) for study in group.values())
        summaries = max(len(study.summary) for study in group.values())
        lines = [
            f"  {study.name:<{width}}  {study.summary:<{summaries}}  {study.needs:<{needs}}  {study.paper}"
            for study in group.values()
        ]
        parts.append("\n".join([title, *lines]))
    legend = "The third column is the level of measurement (or the option of `measure`) that a study needs."
    return "\n\n".join([*parts, legend]) + "\n"
