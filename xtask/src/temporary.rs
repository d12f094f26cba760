//! Tests that only the files in [`CALLS`] create temporary directories or name the system's temporary directory. Every
//! temporary directory is therefore private to the user, and `bottle cleanup` finds it.
//!
//! `clippy.toml` cannot express this rule: its list of methods also applies to tests, which contain hundreds of allowed
//! calls.

use std::path::Path;

use crate::broken::root;
use crate::sources::{self, Texts};

/// The calls, each with the files that may contain it.
const CALLS: [(&str, &[&str]); 7] = [
    ("tempdir()", &[]),
    // The store in `store.rs` is itself a temporary directory.
    ("tempdir_in(", &["crates/host/src/temporary.rs", "crates/repository/src/store.rs"]),
    ("TempDir::", &[]),
    ("temp_dir()", &[]),
    ("NamedTempFile::new()", &[]),
    ("tempfile::tempfile()", &[]),
    (".tempfile()", &[]),
];

/// Returns each call in this code that its file may not contain, as `FILE: CALL`.
fn forbidden(program: &Texts) -> Vec<String> {
    let mut found = Vec::new();
    for (file, code) in program {
        for (call, places) in CALLS {
            if code.contains(call) && !places.iter().any(|place| file == Path::new(place)) {
                found.push(format!("{}: {call}", file.display()));
            }
        }
    }
    found
}

#[test]
fn temporary_directories_are_made_in_one_place() {
    let found = forbidden(&sources::program(root().expect("root")).expect("read"));
    assert!(found.is_empty(), "use `Host::temporary` instead:\n{}", found.join("\n"));
}

#[test]
fn a_call_is_found_unless_its_file_may_contain_it() {
    for (file, code, is_found) in [
        ("src/a.rs", "fn f() { tempfile::tempdir() }", true),
        ("src/a.rs", "Builder::new().tempdir_in(x)", true),
        ("crates/host/src/temporary.rs", "Builder::new().tempdir_in(x)", false),
        ("src/a.rs", "std::env::temp_dir()", true),
        ("src/a.rs", "tempdir_of(x)", false),
    ] {
        let program = Texts::from([(file.into(), code.to_owned())]);
        assert_eq!(!forbidden(&program).is_empty(), is_found, "{file}: {code}");
    }
}
