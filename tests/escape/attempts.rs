//! Runs the same attempt inside a bottle and outside of it.

use std::path::Path;
use std::process::Command;

use bottle_test_support::skip;

use crate::fixture::Bottle;

/// The interpreter that runs the attempts. The test images and most machines have it.
const PYTHON: &str = "/usr/bin/python3";

/// Whether the attempts can run on this machine. If they cannot run, reports the skipped test.
pub(crate) fn possible(what: &str) -> bool {
    let here = Path::new(PYTHON).exists();
    if !here {
        skip::aloud(what, &format!("there is no {PYTHON} to try it with"));
    }
    here
}

/// Runs a script in the bottle and returns its output.
pub(crate) async fn inside(bottle: &Bottle<'_>, script: &str) -> String {
    let channel = bottle.provisioned().await;
    let (said, _) = crate::fixture::run(&channel, &[PYTHON, "-c", script]).await.expect("ran");
    said
}

/// Runs a script outside, as the user who runs the tests, and returns its output.
pub(crate) fn outside(script: &str) -> String {
    let output = Command::new(PYTHON).args(["-c", script]).output().expect("python3");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

/// The beginning of a script that can make any system call: `call(name, number, arguments…)` prints the result.
pub(crate) const CALLS: &str = "import ctypes, errno, os\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    libc.syscall.restype = ctypes.c_long\n\
    def call(name, number, *arguments):\n\
    \x20 ctypes.set_errno(0)\n\
    \x20 wide = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]\n\
    \x20 made = libc.syscall(ctypes.c_long(number), *wide)\n\
    \x20 print(name, errno.errorcode[ctypes.get_errno()] if made == -1 else 'done', flush=True)\n\
    \x20 return made\n";
