//! Tests the behaviours that users expect of tools which drive a machine from outside. The tests are tables of rows
//! that run against a real bottle.
//!
//! Each row names one behaviour. A table runs all its rows in one bottle on the backend `linux`, one after the other.
//! Behaviours that other tests check are not repeated here: large streams, time limits and groups (`executing`),
//! positions, patterns and saved output (`processes`), checks and restarts (`services` and the tests of the guest),
//! paths that lead outside (`fs` and the tests of the guest), the files of secrets (`secrets`), the verdict of each
//! command (the table of the command policy), and one bottle for each task (`environments`).

mod exec;
mod files;
mod policy;
mod processes;
mod services;
mod shells;
mod table;
