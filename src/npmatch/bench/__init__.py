"""How fast a machine is: what `npmatch bench` measures."""
