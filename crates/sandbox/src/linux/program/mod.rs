//! Finds the agent's program on the host and the host paths that it needs in the bottle.
//!
//! ```text
//!   closure    the minimal set of host paths for a program; [`bounds`] has the forbidden ones
//!     python, node, native, shebang   installations that the closure supports
//!     search     the user's PATH, with version managers' shims resolved
//! ```
//! This module runs no programs of the host. It finds dependencies only by reading files. A dependency that no file
//! names stays unknown.

mod bounds;
mod closure;
mod native;
mod node;
mod python;
mod search;
mod shebang;

use std::path::{Path, PathBuf};

use bottle_backend::{BackendError, Prepared};
use bottle_host::Host;
use bottle_policy::names::{AGENT_USER, RUN_DIR, WORKSPACE};

use closure::{Closure, missing};

/// Finds the program that an agent's argv names, and the host paths that the program needs.
///
/// A relative path, or a path in a directory of the bottle, is resolved in the bottle and not searched on the host.
///
/// # Errors
/// [`BackendError`] when the program does not exist (with the searched directories), or when it needs a forbidden path.
pub fn prepare(host: &Host, program: &str, allow: &[PathBuf]) -> Result<Prepared, BackendError> {
    let mut closure = Closure::new(host);
    for path in allow {
        closure.allow(path)?;
    }
    let found = if is_in_bottle(Path::new(program)) {
        None
    } else if program.contains('/') {
        let path = PathBuf::from(program);
        if !search::is_executable(&path) {
            return Err(missing(host, program, "given by its path"));
        }
        Some(path)
    } else {
        Some(search::find(host, program).ok_or_else(|| missing(host, program, "the agent's command"))?)
    };
    if let Some(path) = &found {
        closure.program(path)?;
    }
    let (exposed, path, notes) = closure.finish();
    let program = found.map(|path| path.to_string_lossy().into_owned());
    Ok(Prepared { exposed, program, path, notes, ..Prepared::default() })
}

/// Whether a program of this name or path exists on this machine, or its path is in a directory of the bottle.
#[must_use]
pub fn is_available(host: &Host, program: &str) -> bool {
    let path = Path::new(program);
    is_in_bottle(path)
        || if program.contains('/') {
            search::is_executable(path)
        } else {
            search::find(host, program).is_some()
        }
}

fn is_in_bottle(path: &Path) -> bool {
    let inside = [RUN_DIR.into(), WORKSPACE.into(), Path::new("/home").join(AGENT_USER)];
    let named = path.components().count() > 1;
    (named && path.is_relative()) || inside.iter().any(|directory: &PathBuf| path.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use bottle_backend::BackendErrorKind;

    use super::*;

    /// The home of a user who has installed programs in different ways.
    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            // The code under test compares paths in canonical form.
            Self(tempfile::tempdir().expect("directory"))
        }

        fn at(&self, path: &str) -> PathBuf {
            // Joining an absolute path would write outside this directory.
            assert!(Path::new(path).is_relative(), "{path} is not relative");
            self.0.path().canonicalize().expect("real").join("ann").join(path)
        }

        fn file(&self, path: &str, content: &str) -> PathBuf {
            let file = self.at(path);
            fs::create_dir_all(file.parent().expect("parent")).expect("directories");
            fs::write(&file, content).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("executable");
            file
        }

        fn link(&self, path: &str, target: impl AsRef<Path>) {
            let link = self.at(path);
            fs::create_dir_all(link.parent().expect("parent")).expect("directories");
            symlink(target, link).expect("link");
        }

        fn pyenv(&self) {
            self.file(".pyenv/versions/3.11.7/bin/python3.11", "\x7fELF");
            self.file(".pyenv/versions/3.11.7/lib/python3.11/os.py", "");
            self.link(".pyenv/versions/3.11.7/bin/python3", "python3.11");
            self.file(".pyenv/shims/python3", "#!/bin/sh\n");
            self.file(".pyenv/version", "3.11.7\n3.12.1\n");
        }

        fn venv(&self, path: &str, program: &str) {
            self.pyenv();
            let base = self.at(".pyenv/versions/3.11.7/bin");
            self.file(
                &format!("{path}/pyvenv.cfg"),
                &format!("home = {}\nversion = 3.11.7\n", base.display()),
            );
            self.link(&format!("{path}/bin/python"), base.join("python3"));
            let python = self.at(&format!("{path}/bin/python"));
            self.file(&format!("{path}/bin/{program}"), &format!("#!{}\n", python.display()));
        }

        fn host(&self, path: &[&str]) -> Host {
            let path = std::env::join_paths(path.iter().map(|directory| self.at(directory))).expect("path");
            Host {
                env: BTreeMap::from([("PATH".into(), path)]),
                cwd: "/".into(),
                home: self.at(".bottle"),
                user_home: self.at(""),
                runtime: "/run".into(),
                program: "/bottle".into(),
            }
        }

        fn prepared(&self, path: &[&str], program: &str) -> Prepared {
            prepare(&self.host(path), program, &[]).expect("prepared")
        }

        fn shown(&self, prepared: &Prepared) -> Vec<String> {
            let home = self.at("");
            let relative = |exposed: &bottle_backend::Exposed| {
                exposed.path.strip_prefix(&home).expect("of the home").display().to_string()
            };
            prepared.exposed.iter().map(relative).collect()
        }
    }

    #[test]
    fn exposes_a_virtual_environment_and_its_interpreter() {
        let home = Home::new();
        home.venv("work/venv", "mini");
        let prepared = home.prepared(&["work/venv/bin"], "mini");
        assert_eq!(home.shown(&prepared), [".pyenv/versions/3.11.7", "work/venv"]);
        assert_eq!(prepared.program, Some(home.at("work/venv/bin/mini").display().to_string()));
        assert_eq!(prepared.path[0], home.at("work/venv/bin"));
    }

    #[test]
    fn follows_and_exposes_pipx_links() {
        let home = Home::new();
        home.venv(".local/share/pipx/venvs/mini", "mini");
        home.link(".local/bin/mini", home.at(".local/share/pipx/venvs/mini/bin/mini"));
        let prepared = home.prepared(&[".local/bin"], "mini");
        let shown = [".local/bin/mini", ".local/share/pipx/venvs/mini", ".pyenv/versions/3.11.7"];
        assert_eq!(home.shown(&prepared), shown);
    }

    #[test]
    fn exposes_editable_sources() {
        let home = Home::new();
        home.venv("venv", "mini");
        fs::create_dir_all(home.at("src/mini")).expect("sources");
        let line = format!("{}\nimport something\n", home.at("src/mini").display());
        home.file("venv/lib/python3.11/site-packages/mini.pth", &line);
        assert_eq!(
            home.shown(&home.prepared(&["venv/bin"], "mini")),
            [".pyenv/versions/3.11.7", "src/mini", "venv"]
        );
    }

    #[test]
    fn an_environment_in_the_project_adds_no_sources_outside_of_it() {
        let home = Home::new();
        home.venv("project/.venv", "mini");
        let sources = ["project/src", "other"];
        let line = |path: &str| {
            fs::create_dir_all(home.at(path)).expect("sources");
            format!("{}\n", home.at(path).display())
        };
        let lines: String = sources.iter().map(|path| line(path)).collect();
        home.file("project/.venv/lib/python3.11/site-packages/mini.pth", &lines);
        fs::create_dir_all(home.at("project/sub")).expect("directory");
        for cwd in ["project", "project/sub"] {
            let host = Host { cwd: home.at(cwd), ..home.host(&["project/.venv/bin"]) };
            let prepared = prepare(&host, "mini", &[]).expect("prepared");
            let shown = [".pyenv/versions/3.11.7", "project/.venv", "project/src"];
            assert_eq!(home.shown(&prepared), shown, "{cwd}");
            let other = home.at("other").display().to_string();
            assert!(matches!(&prepared.notes[..], [note] if note.contains(&other)), "{:?}", prepared.notes);
        }
        // The virtual environment belongs to a project outside of the working directory. An agent that worked in the
        // working directory cannot have changed it.
        let host = Host { cwd: home.at("other"), ..home.host(&["project/.venv/bin"]) };
        let prepared = prepare(&host, "mini", &[]).expect("prepared");
        assert!(home.shown(&prepared).contains(&"other".to_owned()));
    }

    #[test]
    fn settings_and_scripts_are_regular_files_of_bounded_size() {
        let home = Home::new();
        home.pyenv();
        home.file(".pyenv/shims/mini", "#!/bin/sh\n");
        home.file(".pyenv/versions/3.11.7/bin/mini", "#!/usr/bin/env python3\n");
        home.file("project/.python-version", "2.7\n");
        let found = || {
            let host = Host { cwd: home.at("project"), ..home.host(&[".pyenv/shims"]) };
            is_available(&host, "mini")
        };
        assert!(!found(), "the version of the project has no such program");
        let version = home.at("project/.python-version");
        for make in [
            (|path: &Path| symlink("/dev/zero", path).expect("link")) as fn(&Path),
            |path| {
                use rustix::fs::{CWD, FileType, Mode, mknodat};
                mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).expect("a named pipe");
            },
            |path| {
                let file = fs::File::create(path).expect("created");
                file.set_len(1 << 40).expect("a long file");
            },
        ] {
            fs::remove_file(&version).expect("removed");
            make(&version);
            assert!(found(), "the global setting counts");
        }
    }

    #[test]
    fn resolves_a_shim_to_the_active_version() {
        let home = Home::new();
        home.pyenv();
        home.file(".pyenv/shims/mini", "#!/bin/sh\n");
        home.file(".pyenv/versions/3.11.7/bin/mini", "#!/usr/bin/env python3\n");
        let prepared = home.prepared(&[".pyenv/shims"], "mini");
        let program = home.at(".pyenv/versions/3.11.7/bin/mini");
        assert_eq!(prepared.program, Some(program.display().to_string()));
        assert!(home.shown(&prepared).contains(&".pyenv/versions/3.11.7".to_owned()));
        assert!(!home.shown(&prepared).iter().any(|path| path.contains("shims")));
    }

    #[test]
    fn exposes_a_global_node_package_and_node() {
        let home = Home::new();
        let root = ".nvm/versions/node/v22";
        home.file(&format!("{root}/bin/node"), "\x7fELF");
        home.file(&format!("{root}/lib/node_modules/@earendil/pi/dist/cli.js"), "#!/usr/bin/env node\n");
        home.file(&format!("{root}/lib/node_modules/other/secret.js"), "");
        home.link(&format!("{root}/bin/pi"), "../lib/node_modules/@earendil/pi/dist/cli.js");
        let prepared = home.prepared(&[&format!("{root}/bin")], "pi");
        let expected =
            ["bin/node", "bin/pi", "lib/node_modules/@earendil/pi"].map(|path| format!("{root}/{path}"));
        assert_eq!(home.shown(&prepared), expected);
        assert_eq!(prepared.path, [home.at(&format!("{root}/bin"))]);
    }

    #[test]
    fn exposes_a_local_node_packages_siblings() {
        let home = Home::new();
        home.file("tools/node", "\x7fELF");
        home.file("p/node_modules/pi/cli.js", "#!/usr/bin/env node\n");
        home.link("p/node_modules/.bin/pi", "../pi/cli.js");
        let prepared = home.prepared(&["p/node_modules/.bin", "tools"], "pi");
        assert_eq!(home.shown(&prepared), ["p/node_modules", "tools/node"]);
    }

    #[test]
    fn exposes_a_standalone_program_alone() {
        let home = Home::new();
        home.file(".cargo/bin/tool", "\x7fELF");
        home.file(".cargo/bin/other", "\x7fELF");
        home.file(".local/share/claude/versions/2.1", "\x7fELF");
        home.link(".local/bin/claude", home.at(".local/share/claude/versions/2.1"));
        assert_eq!(home.shown(&home.prepared(&[".cargo/bin"], "tool")), [".cargo/bin/tool"]);
        assert_eq!(
            home.shown(&home.prepared(&[".local/bin"], "claude")),
            [".local/bin/claude", ".local/share/claude/versions/2.1"]
        );
    }

    #[test]
    fn exposes_the_package_of_codexs_installer() {
        let home = Home::new();
        let release = ".codex/packages/standalone/releases/1.0";
        home.file(&format!("{release}/codex-package.json"), "{}");
        home.file(&format!("{release}/codex-path/rg"), "\x7fELF");
        home.file(&format!("{release}/bin/codex"), "\x7fELF");
        home.link(".codex/packages/standalone/current", home.at(release));
        home.link(".local/bin/codex", home.at(".codex/packages/standalone/current/bin/codex"));
        home.file(".codex/auth.json", "{}");
        let shown = [".codex/packages/standalone/current", release, ".local/bin/codex"];
        assert_eq!(home.shown(&home.prepared(&[".local/bin"], "codex")), shown);
    }

    #[test]
    fn exposes_nothing_for_always_visible_programs() {
        let home = Home::new();
        let prepared = prepare(&home.host(&[]), "/bin/sh", &[]).expect("prepared");
        assert_eq!(prepared.exposed, []);
        assert_eq!(prepared.program.as_deref(), Some("/bin/sh"));
        for inside in ["./run.sh", "/workspace/run.sh", "/run/bottle/bottle", "/home/agent/bin/x"] {
            assert_eq!(prepare(&home.host(&[]), inside, &[]).expect("prepared"), Prepared::default());
        }
    }

    #[test]
    fn names_a_missing_program_and_the_searched_directories() {
        let home = Home::new();
        home.file("bin/pi", "#!/usr/bin/env node\n");
        for (program, named) in [("mini", "\"mini\""), ("pi", "\"node\""), ("/nowhere/x", "/nowhere/x")] {
            let error = prepare(&home.host(&["bin"]), program, &[]).expect_err("missing");
            assert_eq!(error.kind, BackendErrorKind::ProgramMissing);
            assert!(error.message.contains(named), "{error}");
            assert!(error.message.contains(&home.at("bin").display().to_string()), "{error}");
        }
    }

    #[test]
    fn never_exposes_the_home_or_secret_paths() {
        let home = Home::new();
        home.venv(".", "mini");
        assert!(prepare(&home.host(&["bin"]), "mini", &[]).is_err(), "a home that is an environment");
        home.file(".ssh/tool", "\x7fELF");
        assert!(prepare(&home.host(&[".ssh"]), "tool", &[]).is_err());
        for allowed in ["", "..", ".ssh"] {
            assert!(prepare(&home.host(&[]), "/bin/sh", &[home.at(allowed)]).is_err(), "{allowed}");
        }
        fs::create_dir_all(home.at("data")).expect("made");
        let prepared = prepare(&home.host(&[]), "/bin/sh", &[home.at("data")]).expect("allowed");
        assert_eq!(home.shown(&prepared), ["data"]);
    }
}
