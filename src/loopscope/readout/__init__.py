"""φ and its derivatives from states: closed form for an affine head, Taylor mode through any other readout."""

from loopscope.readout.affine.envelope import Envelope as Envelope
from loopscope.readout.affine.path import AffinePath as AffinePath
from loopscope.readout.affine.path import affine_path as affine_path
from loopscope.readout.affine.path import affine_path_from_states as affine_path_from_states
from loopscope.readout.affine.query import EndpointDistributions as EndpointDistributions
from loopscope.readout.affine.query import Survey as Survey
from loopscope.readout.autograd import AutogradCoefficients as AutogradCoefficients
from loopscope.readout.autograd import autograd_coefficients as autograd_coefficients
from loopscope.readout.autograd import chord_curvature as chord_curvature
from loopscope.readout.general.core import Series as Series
from loopscope.readout.general.path import NonlinearPath as NonlinearPath
from loopscope.readout.general.path import nonlinear_path as nonlinear_path
from loopscope.readout.general.path import nonlinear_path_from_states as nonlinear_path_from_states
from loopscope.readout.options import OptionPath as OptionPath
from loopscope.readout.options import option_path as option_path
from loopscope.readout.path import Derivatives as Derivatives
from loopscope.readout.path import UtilityPath as UtilityPath
