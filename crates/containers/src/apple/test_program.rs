//! Programs for tests of this backend.

use std::fs;
use std::process::Command;

use bottle_backend::command_line::runner::Program;
use bottle_host::Host;

/// Creates a program of this name that is a shell script. Returns the directory that contains the program, and the
/// program. Each call appends its arguments to the file `calls` in the directory.
pub(super) fn program(name: &'static str, script: &str) -> (tempfile::TempDir, Program) {
    let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
    let path = directory.path().join(name);
    let calls = directory.path().join("calls");
    let text = format!("#!/bin/sh\necho \"$*\" >> {}\n{script}\n", calls.display());
    fs::write(path.with_extension("text"), text).expect("written");
    // Another process writes the program. If this process wrote it, a child process of another test could inherit the
    // open file. The kernel would then refuse to run the program until that child executes its own program.
    let copied =
        Command::new("install").args(["-m", "755"]).arg(path.with_extension("text")).arg(&path).status();
    assert!(copied.is_ok_and(|status| status.success()), "the program is executable");
    let search = format!("{}:/usr/bin:/bin", directory.path().display());
    let host = Host {
        env: [("PATH".into(), search.into())].into(),
        cwd: "/".into(),
        home: directory.path().join("home"),
        user_home: directory.path().into(),
        runtime: directory.path().join("run"),
        program: "/bottle".into(),
    };
    (directory, Program::new(&host, name, &[]))
}
