"""Tests marked by ``support.staging.BOTH`` take tensors as if they were on a device, too."""

from support.staging import staged as staged
