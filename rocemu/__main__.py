"""``python -m rocemu`` is ``rocemu``."""

import sys

from rocemu.cli.main import main

sys.exit(main())
