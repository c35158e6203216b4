"""The head's bias with −∞ at the mask and on the padding. The definition is `ops.common.barred_bias`; the kernel does it in one launch."""
