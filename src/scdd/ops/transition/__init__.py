"""p_θ(z_s | z_t) at every position. The definition is `processes.base.Process.transition`; the kernel gives SCDD's, MDLM's and GIDD's."""
