//! Runs coding agents in isolated bottles.
