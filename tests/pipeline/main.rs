//! Tests the steps from manifest files to a resolved manifest or an error. A case is a file or a directory, with
//! its expected output next to it.
//!
//! ```text
//! refused/{agent,bottle}/NAME.md   one manifest that must be refused, with its error in NAME.snap
//! cases/NAME/select.txt            AGENT [--bottle B]..., as on the command line
//! cases/NAME/{home,user,work}/     $BOTTLE_HOME, the user's home, the working directory
//! cases/NAME/runs.txt              flags of each start: `terminal`, `resumed`, `-p TASK`, `-- ARGS`
//! cases/NAME/secrets.txt           values of the login; for each, the first run is planned again
//! cases/NAME/expected.snap         the resolved manifest as `info --explain` shows it, or the error;
//!                                  then the plan of each run
//! ```

#![allow(missing_docs)]

mod cases;
mod docs;
mod hostile;
mod refused;
mod runs;
mod shipped;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Returns the path of a directory of these tests.
fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pipeline").join(name)
}

/// Lists the entries of a directory, sorted.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let listed = directory.read_dir().unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
}

/// Runs every case, and fails with the names of all failed cases.
fn each(cases: &[PathBuf], run: impl Fn(&Path)) {
    assert!(!cases.is_empty(), "there are no cases");
    let failed: Vec<_> =
        cases.iter().filter(|case| catch_unwind(AssertUnwindSafe(|| run(case))).is_err()).collect();
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

/// Compares `text` with the snapshot `name` in a directory.
fn expect(directory: &Path, name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(directory);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}
