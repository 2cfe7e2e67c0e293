"""The wording of each benchmark, as data: one TOML file a task, read by `loopscope.tasks.template`."""
