//! Kills a process when a test or benchmark no longer needs it, also if the test fails.

use std::process::Child;

/// A process that is killed when the value is dropped.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
