//! Reads the sources of the workspace, and removes tests and comments from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The texts of files. Each key is the path of a file below the root of the workspace.
pub(crate) type Texts = BTreeMap<PathBuf, String>;

/// The beginnings of the attributes of test modules. Some of these modules are also for fuzzing.
const TEST_ATTRIBUTES: [&str; 3] = ["#[cfg(test)]", "#[cfg(all(test,", "#[cfg(any(test,"];

/// The directories with the packages of the program.
const PROGRAM: [&str; 3] = ["src", "crates", "sidecars"];

/// Returns the code of the program without tests and comments: of `src`, and of `src` in each crate of `crates` and
/// `sidecars`.
///
/// # Errors
/// Returns an error if a directory or a file cannot be read.
pub(crate) fn program(root: &Path) -> Result<Texts> {
    packages(root, &PROGRAM)
}

/// Returns the code of all packages of the workspace without tests and comments: of the program, and of the packages
/// that test and build it.
///
/// # Errors
/// Returns an error if a directory or a file cannot be read.
pub(crate) fn workspace(root: &Path) -> Result<Texts> {
    packages(root, &[&PROGRAM[..], &["tests/support", "xtask/src"]].concat())
}

fn packages(root: &Path, directories: &[&str]) -> Result<Texts> {
    let mut texts = read(root, directories)?;
    // All other files are integration tests and benchmarks of a crate.
    let is_code = |file: &Path| {
        ["src", "xtask/src"].iter().any(|directory| file.starts_with(directory))
            || file.iter().nth(2).is_some_and(|part| part == "src")
    };
    texts.retain(|file, _| is_code(file));
    Ok(without_tests(&texts))
}

/// Reads the Rust files in and below these directories of `root`.
///
/// # Errors
/// Returns an error if a directory or a file cannot be read.
pub(crate) fn read(root: &Path, directories: &[&str]) -> Result<Texts> {
    let mut directories: Vec<PathBuf> = directories.iter().map(|directory| root.join(directory)).collect();
    let mut texts = Texts::new();
    while let Some(directory) = directories.pop() {
        let listed = fs::read_dir(&directory);
        for entry in listed.with_context(|| format!("cannot list {}", directory.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                texts.insert(path.strip_prefix(root)?.to_owned(), text);
            }
        }
    }
    Ok(texts)
}

/// Returns the code of the files that are not test modules.
fn without_tests(texts: &Texts) -> Texts {
    let tests: BTreeSet<PathBuf> = texts.iter().flat_map(|(file, text)| test_modules(file, text)).collect();
    let program = texts.iter().filter(|(file, _)| !file.ancestors().any(|path| tests.contains(path)));
    program.map(|(file, text)| (file.clone(), code(text))).collect()
}

/// Returns the code of a file up to its first test module, without comments.
fn code(text: &str) -> String {
    let is_module = |line: &str| line.ends_with('{') && line.split_whitespace().any(|word| word == "mod");
    let module = after_attributes(text).find(|(_, line)| is_module(line)).map(|(at, _)| at);
    let code = &text[..module.unwrap_or(text.len())];
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the test modules that a file declares, as paths of files and of directories.
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

/// Returns the first line of code after each attribute for tests, with the end of the attribute as a byte offset.
fn after_attributes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some((*end, line))
    });
    let is_for_tests = |line: &str| TEST_ATTRIBUTES.iter().any(|begin| line.starts_with(begin));
    let attributes = lines.filter(move |(_, line)| is_for_tests(line));
    attributes
        .filter_map(|(end, _)| Some((end, text.get(end..)?.lines().find(|line| !line.starts_with("#["))?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_comments_are_cut_out() {
        for (text, expected) in [
            ("a // b\nc", "a \nc"),
            ("a\n#[cfg(test)]\nmod tests {\n b }", "a\n#[cfg(test)]"),
            (
                "a\n#[cfg(all(test, unix))]\n#[rustfmt::skip]\npub(crate) mod tests {\n b }",
                "a\n#[cfg(all(test, unix))]",
            ),
            ("#[cfg(unix)]\nmod a {\n b }", "#[cfg(unix)]\nmod a {\n b }"),
        ] {
            assert_eq!(code(text), expected);
        }
    }

    #[test]
    fn modules_for_tests_are_left_out() {
        let files = [
            ("src/a.rs", ""),
            ("src/b/mod.rs", "#[cfg(test)]\npub(super) mod helper;\nmod other;\n"),
            ("src/b/helper.rs", ""),
            ("src/b/other.rs", ""),
            ("src/c.rs", "#[cfg(test)]\nmod tests;\n"),
            ("src/c/tests.rs", ""),
            ("src/c/tests/deep.rs", ""),
        ];
        let texts = files.into_iter().map(|(file, text)| (PathBuf::from(file), text.to_owned())).collect();
        let left: Vec<PathBuf> = without_tests(&texts).into_keys().collect();
        assert_eq!(left, ["src/a.rs", "src/b/mod.rs", "src/b/other.rs", "src/c.rs"].map(PathBuf::from));
    }

    #[test]
    fn the_program_has_no_tests_of_crates() {
        let program = program(crate::broken::root().expect("root")).expect("read");
        assert!(program.len() > 500, "{}", program.len());
        assert!(program.keys().all(|file| file.iter().all(|part| part != "tests" && part != "benches")));
    }
}
