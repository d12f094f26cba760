//! The rooms of the program's package: the directories in `src`. Checks which room imports which other room, and that
//! no command imports another command.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::circles;
use crate::sources::{self, Texts};

/// Each room of `src` with the other rooms that it may import.
const ROOMS: [(&str, &[&str]); 5] = [
    ("console", &[]),
    ("screens", &["console"]),
    ("web", &["console"]),
    ("mcp", &["console"]),
    ("cli", &["console", "screens", "web", "mcp"]),
];

/// Refuses imports between rooms that [`ROOMS`] does not allow, and imports between commands.
///
/// # Errors
/// Returns an error that lists these imports, or an error if the sources cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut texts = sources::program(root)?;
    texts.retain(|file, _| file.starts_with("src"));
    let commands = commands(&texts)?;
    let wrong = wrong(&texts, &commands);
    ensure!(wrong.is_empty(), "imports against the order of the rooms:\n{}", wrong.join("\n"));
    Ok(())
}

/// Returns the names of the modules that `src/cli/args.rs` imports with `use super::{…}`. Each of these modules is a
/// command.
fn commands(texts: &Texts) -> Result<BTreeSet<String>> {
    let args = texts.get(Path::new("src/cli/args.rs")).context("there is no src/cli/args.rs")?;
    let list = args.split_once("use super::{").and_then(|(_, rest)| rest.split_once('}'));
    let (names, _) = list.context("src/cli/args.rs imports no commands")?;
    Ok(names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn wrong(texts: &Texts, commands: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, imported) in circles::imports(Path::new("src"), texts) {
        let importer = place(file);
        for import in imported {
            let target = place(import);
            let is_allowed = match (importer, target) {
                (Some(("cli", command)), Some(("cli", other))) => {
                    command == other || !commands.contains(command) || !commands.contains(other)
                }
                (Some((room, _)), Some((other, _))) if room == other => true,
                (Some((room, _)), Some((other, _))) => may_import(room, other),
                _ => true,
            };
            if !is_allowed {
                wrong.push(format!("  {} imports {}", file.display(), import.display()));
            }
        }
    }
    wrong
}

/// Returns the room of a file below `src`, and the first module of the file's path in this room.
fn place(file: &Path) -> Option<(&str, &str)> {
    let mut names = file.iter().skip(1).map(|name| name.to_str().unwrap_or_default());
    let room = names.next().filter(|room| !room.ends_with(".rs"))?;
    let module = names.next().unwrap_or_default();
    Some((room, module.strip_suffix(".rs").unwrap_or(module)))
}

fn may_import(room: &str, other: &str) -> bool {
    ROOMS.iter().any(|(name, allowed)| *name == room && allowed.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong_in(files: &[(&str, &str)]) -> Vec<String> {
        let texts: Texts =
            files.iter().map(|(file, text)| (Path::new(file).to_owned(), (*text).to_owned())).collect();
        wrong(&texts, &commands(&texts).expect("commands"))
    }

    #[test]
    fn the_rooms_of_the_program_are_in_order() {
        check(crate::broken::root().expect("root")).expect("the rooms");
    }

    #[test]
    fn an_import_against_the_order_is_found() {
        let args = ("src/cli/args.rs", "use super::{one, two};");
        let files = |file, text| {
            let console = ("src/console/output.rs", "");
            let screen = ("src/screens/picker/mod.rs", "");
            [args, ("src/cli/one.rs", ""), ("src/cli/two/mod.rs", ""), console, screen, (file, text)]
        };
        for (file, text, is_wrong) in [
            ("src/cli/one.rs", "use super::two::Two;", true),
            ("src/cli/two/part.rs", "use crate::cli::one;", true),
            ("src/cli/shared.rs", "use super::one;", false),
            ("src/cli/one.rs", "use crate::screens::picker;", false),
            ("src/console/style.rs", "use crate::screens::picker;", true),
            ("src/console/style.rs", "use super::output;", false),
            ("src/mcp/mod.rs", "use crate::cli::one;", true),
            ("src/web/mod.rs", "use crate::screens::picker;", true),
            ("src/screens/session.rs", "use crate::console::output;", false),
        ] {
            assert_eq!(wrong_in(&files(file, text)).len(), usize::from(is_wrong), "{file}: {text}");
        }
    }
}
