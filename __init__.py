"""What `import refsd` finds in the folder that holds a clone: it hands over to the package inside the clone."""

import importlib.util
import sys
from pathlib import Path

if __name__ == "refsd":
    # Its floors (kernels, golden, ...) lie beside it.
    _root = Path(__file__).parent
    _found = importlib.util.spec_from_file_location(
        __name__, _root / "refsd" / "__init__.py", submodule_search_locations=[str(_root / "refsd"), str(_root)]
    )
    assert _found and _found.loader
    sys.modules[__name__] = importlib.util.module_from_spec(_found)
    _found.loader.exec_module(sys.modules[__name__])
