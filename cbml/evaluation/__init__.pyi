from .metrics import METRICS as METRICS
from .metrics import Metric as Metric
from .metrics import agreement as agreement
from .scores import KMeansOptions as KMeansOptions
from .scores import Scores as Scores
from .scores import evaluate as evaluate
from .scores import score_names as score_names
