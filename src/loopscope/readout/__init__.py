"""φ and its derivatives from states: closed form for an affine head, Taylor mode through any other readout."""

from loopscope.readout.affine.envelope import Envelope
from loopscope.readout.affine.path import AffinePath, affine_path, affine_path_from_states
from loopscope.readout.affine.query import EndpointDistributions, Survey
from loopscope.readout.autograd import AutogradCoefficients, autograd_coefficients, chord_curvature
from loopscope.readout.general.core import Series
from loopscope.readout.general.path import NonlinearPath, nonlinear_path, nonlinear_path_from_states
from loopscope.readout.options import OptionPath, joint_option_utility, option_path
from loopscope.readout.path import Derivatives, UtilityPath

__all__ = [
    "AffinePath",
    "AutogradCoefficients",
    "Derivatives",
    "EndpointDistributions",
    "Envelope",
    "NonlinearPath",
    "OptionPath",
    "Series",
    "Survey",
    "UtilityPath",
    "affine_path",
    "affine_path_from_states",
    "autograd_coefficients",
    "chord_curvature",
    "joint_option_utility",
    "nonlinear_path",
    "nonlinear_path_from_states",
    "option_path",
]
