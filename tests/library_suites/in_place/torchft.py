"""torchft: ProcessGroupGloo in its tests is our process group."""

from __future__ import annotations

import torchft
import torchft.process_group

from worker_plugin.integrations.torchft import ProcessGroupReduction

for module in (torchft, torchft.process_group):
    module.ProcessGroupGloo = ProcessGroupReduction
