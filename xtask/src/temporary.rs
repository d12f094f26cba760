//! Tests that only one file creates temporary directories and names the system's temporary directory, so that each is
//! private to the user and found by `bottle cleanup`.
//!
//! `clippy.toml` cannot say this: its list of methods also holds for tests, in which hundreds of such calls are right.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::broken::root;

/// The calls, each with the files that may contain it.
const CALLS: [(&str, &[&str]); 7] = [
    ("tempdir()", &[]),
    // The store is itself such a directory.
    ("tempdir_in(", &["src/host/temporary.rs", "crates/repository/src/store.rs"]),
    ("TempDir::", &[]),
    ("temp_dir()", &[]),
    ("NamedTempFile::new()", &[]),
    ("tempfile::tempfile()", &[]),
    (".tempfile()", &[]),
];

/// The lines after each attribute for tests in a text.
fn after_attributes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some((*end, line))
    });
    let attributes = lines.filter(|(_, line)| line.starts_with("#[cfg(") && line.contains("test"));
    attributes
        .filter_map(|(end, _)| Some((end, text.get(end..)?.lines().find(|line| !line.starts_with("#["))?)))
}

/// The code of a file up to its first test module, without comments.
fn code(text: &str) -> String {
    let is_module = |line: &str| line.ends_with('{') && line.split_whitespace().any(|word| word == "mod");
    let module = after_attributes(text).find(|(_, line)| is_module(line)).map(|(at, _)| at);
    let code = &text[..module.unwrap_or(text.len())];
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The modules that a file declares for tests, as paths of files and of directories.
fn test_modules(file: &Path, text: &str) -> Vec<PathBuf> {
    let directory = match file.file_name().and_then(|name| name.to_str()) {
        Some("mod.rs" | "lib.rs" | "main.rs") => file.parent().unwrap_or(Path::new("")).to_owned(),
        _ => file.with_extension(""),
    };
    let declared = after_attributes(text).filter_map(|(_, line)| {
        let (_, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
        Some(name.to_owned())
    });
    declared.flat_map(|name| [directory.join(format!("{name}.rs")), directory.join(name)]).collect()
}

/// Each call in the code of these files that its file may not contain, as `FILE: CALL`.
fn forbidden(files: &[(PathBuf, String)]) -> Vec<String> {
    let tests: BTreeSet<PathBuf> = files.iter().flat_map(|(file, text)| test_modules(file, text)).collect();
    let mut found = Vec::new();
    for (file, text) in files.iter().filter(|(file, _)| !file.ancestors().any(|path| tests.contains(path))) {
        let code = code(text);
        for (call, places) in CALLS {
            if code.contains(call) && !places.iter().any(|place| file == Path::new(place)) {
                found.push(format!("{}: {call}", file.display()));
            }
        }
    }
    found
}

/// The sources of the program, with their paths below the root of the workspace.
fn sources(root: &Path) -> Vec<(PathBuf, String)> {
    let mut folders = vec![root.join("src")];
    for group in ["sidecars", "crates"] {
        // A checkout may have no such group.
        let crates = fs::read_dir(root.join(group)).into_iter().flatten();
        folders.extend(
            crates.map(|entry| entry.expect("entry").path().join("src")).filter(|path| path.is_dir()),
        );
    }
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("listed") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("read");
                files.push((path.strip_prefix(root).expect("below the root").to_owned(), text));
            }
        }
    }
    files
}

#[test]
fn temporary_directories_are_made_in_one_place() {
    let files = sources(root().expect("root"));
    assert!(files.len() > 500, "{}", files.len());
    let found = forbidden(&files);
    assert!(found.is_empty(), "use `Host::temporary` instead:\n{}", found.join("\n"));
}

#[test]
fn a_call_is_found_unless_it_is_a_tests() {
    let call = "fn f() { tempfile::tempdir() }\n";
    for (file, text, is_found) in [
        ("src/a.rs", call.to_owned(), true),
        ("src/a.rs", "Builder::new().tempdir_in(x)".to_owned(), true),
        ("src/host/temporary.rs", "Builder::new().tempdir_in(x)".to_owned(), false),
        ("src/a.rs", "std::env::temp_dir()".to_owned(), true),
        ("src/a.rs", format!("x\n#[cfg(test)]\nmod tests {{\n {call} }}"), false),
        ("src/a.rs", format!("x\n#[cfg(all(test, unix))]\npub(crate) mod tests {{\n {call} }}"), false),
        ("src/a.rs", format!("// {call}"), false),
        ("src/b/helper.rs", call.to_owned(), false),
        ("src/c/tests/deep.rs", call.to_owned(), false),
    ] {
        let declaring = [
            (PathBuf::from("src/b/mod.rs"), "#[cfg(test)]\npub(super) mod helper;\n".to_owned()),
            (PathBuf::from("src/c.rs"), "#[cfg(test)]\nmod tests;\n".to_owned()),
        ];
        let files = [&declaring[..], &[(PathBuf::from(file), text.clone())]].concat();
        assert_eq!(!forbidden(&files).is_empty(), is_found, "{file}: {text}");
    }
}
