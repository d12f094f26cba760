//! Writes a shell script that a test runs.

use std::path::Path;
use std::process::Command;

/// Writes an executable shell script.
///
/// Another process writes the file. If this process wrote it, a fork of another test could hold the file open for
/// writing, and a file that is open for writing cannot be executed (ETXTBSY in execve(2)).
///
/// # Panics
/// Panics if the file cannot be written.
pub fn script_file(path: &Path, script: &str) {
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .args([path.as_os_str(), script.as_ref()])
        .status();
    assert!(written.is_ok_and(|status| status.success()), "{} cannot be written", path.display());
}
