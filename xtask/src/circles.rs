//! Finds circles of imports between the files of a package. In a circle, each file reaches every other file through
//! imports. Two files may import each other. A larger circle is refused, because it can only be understood as a whole.
//!
//! An import is a path that begins with `crate`, `super` or, in a `use`, with `self`. A module that re-exports its own
//! submodules by their names (`pub use submodule::Name`) does not import them. A submodule that uses a re-exported name
//! of the module imports the module's file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::sources::{self, Texts};

/// The maximum number of files in an allowed circle.
const MOST: usize = 2;

/// The path of a module, as names. The path of a package's root has no names.
type Module = Vec<String>;

/// Files that reach each other through imports.
#[derive(Debug, PartialEq, Eq)]
struct Circle {
    files: BTreeSet<PathBuf>,
    /// Each file of the circle, with the files of the circle that it imports.
    imports: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
}

/// Refuses circles of imports.
///
/// # Errors
/// Returns an error with the files and the imports of each circle, or if the sources cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let circles: Vec<String> = all(root)?.iter().map(described).collect();
    ensure!(circles.is_empty(), "circles of more than {MOST} files:\n{}", circles.join("\n"));
    Ok(())
}

/// Returns the circles of all packages of the workspace.
fn all(root: &Path) -> Result<Vec<Circle>> {
    let mut packages: BTreeMap<PathBuf, Texts> = BTreeMap::new();
    for (file, code) in sources::workspace(root)? {
        packages.entry(package(&file)).or_default().insert(file, code);
    }
    Ok(packages.iter().flat_map(|(package, texts)| circles(package, texts)).collect())
}

/// Returns the directory `src` of the package that a file belongs to.
fn package(file: &Path) -> PathBuf {
    let is_src = |path: &&Path| path.ends_with("src");
    file.ancestors().filter(is_src).last().unwrap_or(Path::new("")).to_owned()
}

/// Formats the files of a circle and their imports, with one file on each line.
fn described(circle: &Circle) -> String {
    let mut lines = vec![format!("{} files:", circle.files.len())];
    for (file, imports) in &circle.imports {
        let imports: Vec<String> = imports.iter().map(|import| import.display().to_string()).collect();
        lines.push(format!("  {} imports {}", file.display(), imports.join(", ")));
    }
    lines.join("\n")
}

/// Returns each file of a package with the files that it imports.
pub(crate) fn imports<'t>(package: &Path, texts: &'t Texts) -> BTreeMap<&'t Path, BTreeSet<&'t Path>> {
    let has_library = texts.contains_key(&package.join("lib.rs"));
    // A program beside a library is a crate of its own, which imports the library by its name.
    let is_program = |file: &Path| has_library && file == package.join("main.rs");
    let modules: BTreeMap<Module, &Path> = texts
        .keys()
        .filter(|file| !is_program(file))
        .map(|file| (module(package, file), file.as_path()))
        .collect();
    modules
        .iter()
        .map(|(module, file)| {
            let imported =
                paths(&texts[*file]).into_iter().filter_map(|path| resolve(&path, module, &modules));
            (*file, imported.filter(|imported| imported != file).collect())
        })
        .collect()
}

/// Returns the circles of more than [`MOST`] files in a package.
fn circles(package: &Path, texts: &Texts) -> Vec<Circle> {
    let imports = imports(package, texts);
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        imports.keys().map(|file| (*file, reached(file, &imports))).collect();
    let mut found: Vec<Circle> = Vec::new();
    for (file, reached_by_it) in &reached {
        let files: BTreeSet<PathBuf> = reached_by_it
            .iter()
            .filter(|other| reached[*other].contains(file))
            .map(|other| other.to_path_buf())
            .collect();
        if files.len() <= MOST || found.iter().any(|circle| circle.files.contains(*file)) {
            continue;
        }
        let within = |file: &PathBuf| {
            let imported = imports[file.as_path()].iter().map(|imported| imported.to_path_buf());
            (file.clone(), imported.filter(|imported| files.contains(imported)).collect())
        };
        found.push(Circle { imports: files.iter().map(within).collect(), files });
    }
    found
}

/// Returns the files that a file reaches through imports.
fn reached<'t>(file: &'t Path, imports: &BTreeMap<&'t Path, BTreeSet<&'t Path>>) -> BTreeSet<&'t Path> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![file]);
    while let Some(file) = left.pop() {
        left.extend(imports[file].iter().copied().filter(|imported| reached.insert(*imported)));
    }
    reached
}

/// Returns the path of the module in a file.
fn module(package: &Path, file: &Path) -> Module {
    let inside = file.strip_prefix(package).unwrap_or(file).with_extension("");
    let mut names: Module = inside.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    let is_root = names.len() == 1 && names.first().is_some_and(|name| name == "lib" || name == "main");
    if is_root || names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

/// Returns the file of the module that a path in `module` names, or that contains the named item. Returns `None` for a
/// path into another crate.
fn resolve<'t>(path: &[String], module: &[String], modules: &BTreeMap<Module, &'t Path>) -> Option<&'t Path> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let (base, inside) = match path.first()?.as_str() {
        "crate" => (&[][..], &path[1..]),
        "self" => (module, &path[1..]),
        "super" => (&module[..module.len().saturating_sub(supers)], &path[supers..]),
        _ => return None,
    };
    let full: Module = base.iter().chain(inside).cloned().collect();
    (0..=full.len()).rev().find_map(|length| modules.get(&full[..length]).copied())
}

/// Returns the paths in this code that begin with `crate` or `super`, and all paths in `use` items.
fn paths(code: &str) -> Vec<Vec<String>> {
    let (uses, rest) = split_uses(&without_restrictions(code));
    let mut paths = Vec::new();
    for item in uses {
        if let Some((_, tree)) = item.split_once("use ") {
            expand(&[], tree.split(';').next().unwrap_or_default(), &mut paths);
        }
    }
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    for start in ["crate::", "super::"] {
        for (at, _) in rest.match_indices(start) {
            if rest[..at].ends_with(|c| is_of_name(c) || c == ':') {
                continue;
            }
            let path: String = rest[at..].chars().take_while(|c| is_of_name(*c) || *c == ':').collect();
            paths.push(names(&path));
        }
    }
    paths
}

/// Returns the names in a path.
fn names(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Removes the paths of visibilities, such as `pub(in crate::module)`.
fn without_restrictions(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| code + "pub" + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// Splits code into its `use` items and everything else.
fn split_uses(code: &str) -> (Vec<String>, String) {
    let (mut uses, mut rest, mut open) = (Vec::new(), String::new(), None::<String>);
    for line in code.lines() {
        let begun = open.take().or_else(|| begins_use(line).then(String::new));
        match begun {
            Some(item) if line.contains(';') => uses.push(item + line),
            Some(item) => open = Some(item + line),
            None => rest = rest + line + "\n",
        }
    }
    (uses, rest)
}

fn begins_use(line: &str) -> bool {
    let line = line.trim_start();
    let item = match line.strip_prefix("pub") {
        Some(rest) => rest.trim_start_matches(|c| c != ' ').trim_start(),
        None => line,
    };
    item.starts_with("use ")
}

/// Adds the paths of a tree of imports (`a::{b, c::{self, d}}`) to `paths`.
fn expand(prefix: &[String], tree: &str, paths: &mut Vec<Vec<String>>) {
    let mut depth = 0_usize;
    let items = tree.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    for item in items.map(str::trim).filter(|item| !item.is_empty()) {
        let (path, inner) = match item.split_once('{') {
            Some((path, inner)) => (path, inner.strip_suffix('}')),
            None => (item.split(" as ").next().unwrap_or_default(), None),
        };
        let mut path: Vec<String> = prefix.iter().cloned().chain(names(path)).collect();
        if let Some(inner) = inner {
            expand(&path, inner, paths);
            continue;
        }
        // `a::{self}` means `a`.
        path.pop_if(|name| name == "self" && !prefix.is_empty());
        paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Circle> {
        let texts = files.iter().map(|(file, text)| (PathBuf::from(file), (*text).to_owned())).collect();
        circles(Path::new("src"), &texts)
    }

    #[test]
    fn no_circle_exists() {
        check(crate::broken::root().expect("root")).expect("no circle");
    }

    #[test]
    fn a_circle_is_found_in_every_spelling() {
        for import in [
            "use crate::a::A;",
            "use crate::{\n    a::{self, A},\n    c,\n};",
            "pub(crate) use super::super::a::A as B;",
            "pub(in crate::b) use crate::a;",
            "fn f() {\n    crate::a::f()\n}",
            "fn f() -> super::super::a::A {}",
            "fn f() {\n    use crate::a::A;\n}",
        ] {
            let circles = found(&[
                ("src/lib.rs", ""),
                ("src/a.rs", "use crate::b::B;"),
                ("src/b/mod.rs", "pub(super) use self::c::{B, C as D};"),
                ("src/b/c.rs", import),
            ]);
            assert_eq!(circles.len(), 1, "{import}");
            let described = described(&circles[0]);
            assert_eq!(
                described,
                "3 files:\n  src/a.rs imports src/b/mod.rs\n  src/b/c.rs imports src/a.rs\n  \
                 src/b/mod.rs imports src/b/c.rs",
                "{import}"
            );
        }
    }

    #[test]
    fn what_is_no_circle_is_allowed() {
        for (case, files) in [
            ("two files", &[("src/a.rs", "use crate::b;"), ("src/b.rs", "use crate::a;")][..]),
            ("a chain", &[("src/a.rs", "use crate::b;"), ("src/b.rs", "use crate::c;"), ("src/c.rs", "")]),
            (
                "names that are not paths of the crate",
                &[
                    ("src/a.rs", "use crate::b;"),
                    ("src/b.rs", "use crate::c;"),
                    ("src/c.rs", "use a::b;\nuse bottle_crate::a;\nfn f() { not_crate::a::f() }"),
                ],
            ),
            (
                "the path of a visibility",
                &[
                    ("src/a/mod.rs", "use crate::b;"),
                    ("src/b.rs", "use crate::a::c::f;"),
                    ("src/a/c.rs", "pub(in crate::a) fn f() {}"),
                ],
            ),
            (
                "names of submodules in their module",
                &[
                    ("src/a/mod.rs", "pub use b::B;"),
                    ("src/a/b.rs", "use super::c::C;"),
                    ("src/a/c.rs", "use super::B;"),
                ],
            ),
            (
                "a program and its library",
                &[
                    ("src/lib.rs", "use crate::a;"),
                    ("src/main.rs", "use crate::a;"),
                    ("src/a.rs", "use crate::Lib;"),
                ],
            ),
        ] {
            assert_eq!(found(files), [], "{case}");
        }
    }
}
