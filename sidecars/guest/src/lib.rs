//! Pid 1 of every bottle.
