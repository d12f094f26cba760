//! Programs for tests of this backend.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::backend::command_line::runner::Program;
use crate::host::Host;

/// A program of this name that is a shell script, and the folder that contains it. Each call appends its arguments to
/// the file `calls` in the folder.
pub(super) fn program(name: &'static str, script: &str) -> (tempfile::TempDir, Program) {
    let folder = tempfile::Builder::new().prefix("b").tempdir().expect("folder");
    let path = folder.path().join(name);
    let calls = folder.path().join("calls");
    fs::write(&path, format!("#!/bin/sh\necho \"$*\" >> {}\n{script}\n", calls.display())).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    let search = format!("{}:/usr/bin:/bin", folder.path().display());
    let host = Host {
        env: [("PATH".into(), search.into())].into(),
        cwd: "/".into(),
        home: folder.path().join("home"),
        user_home: folder.path().into(),
        runtime: folder.path().join("run"),
        program: "/bottle".into(),
    };
    (folder, Program::new(&host, name, &[]))
}
