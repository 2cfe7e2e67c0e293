"""When to stop and how far to step: policies, what they see, what they cost, and how they compare at equal cost."""

from loopscope.control.policy import Decision, Policy, Seen, Stepper, ThresholdRule

__all__ = ["Decision", "Policy", "Seen", "Stepper", "ThresholdRule"]
