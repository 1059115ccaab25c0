from refsd.api import assert_conforms as assert_conforms
from refsd.api import forward as forward
from refsd.api import golden as golden
from refsd.api import judge as judge
from refsd.watching import watch as watch

__version__: str
SPINS: str
SHORT: str
