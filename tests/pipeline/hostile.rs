//! Tests hostile manifest files: too large, not text, not regular files, or links that point outside.

use std::fs;
use std::os::unix::fs::symlink;

use bottle_manifest::resolve::{ResolveError, Selection, resolve};
use bottle_manifest::{Homes, Kind, Manifests, Place};
use bottle_policy::names::Name;

struct World {
    _temp: tempfile::TempDir,
    homes: Homes,
}

impl World {
    fn new() -> Self {
        let temp = tempfile::tempdir().expect("temporary directory");
        let user_home = temp.path().join("user");
        let homes =
            Homes { bottle_home: user_home.join(".bottle"), cwd: temp.path().join("project"), user_home };
        fs::create_dir_all(homes.bottle_home.join("bottles")).expect("bottles");
        fs::create_dir_all(homes.bottle_home.join("agents")).expect("agents");
        fs::create_dir_all(homes.cwd.join(".bottle/agents")).expect("project");
        Self { _temp: temp, homes }
    }

    fn bottle(&self, name: &str) -> std::path::PathBuf {
        self.homes.bottle_home.join(format!("bottles/{name}.md"))
    }

    fn refusal(&self, agent: &str, bottle: &str) -> String {
        let selection = Selection { agent: name(agent), bottles: vec![name(bottle)] };
        match resolve(&selection, &Manifests::new(self.homes.clone())) {
            Err(ResolveError::Manifest(error)) => error.message,
            Err(other) => panic!("another error: {other}"),
            Ok(_) => panic!("resolved"),
        }
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("name")
}

#[test]
fn refuses_a_manifest_of_two_mebibytes() {
    let world = World::new();
    let text = format!("---\nsupervise: true\n---\n{}", "x".repeat(2 << 20));
    fs::write(world.bottle("big"), text).expect("file");
    assert_eq!(world.refusal("shell", "big"), "is larger than 1024 KiB, the most a manifest may have");
}

#[test]
fn refuses_binary_files_directories_and_pipes_without_blocking() {
    let world = World::new();
    fs::write(world.bottle("latin"), b"---\nenv:\n  A: \xe9\n---\n").expect("file");
    assert_eq!(world.refusal("shell", "latin"), "is not UTF-8 text (line 3)");
    fs::create_dir(world.bottle("directory")).expect("directory");
    assert_eq!(world.refusal("shell", "directory"), "cannot be read: not a regular file");
    rustix::fs::mkfifoat(rustix::fs::CWD, world.bottle("pipe"), rustix::fs::Mode::RWXU).expect("pipe");
    assert_eq!(world.refusal("shell", "pipe"), "cannot be read: not a regular file");
}

#[test]
fn refuses_a_link_that_points_outside_the_home() {
    let world = World::new();
    fs::write(world.homes.user_home.join("outside.md"), "---\nsupervise: false\n---\n").expect("file");
    symlink(world.homes.user_home.join("outside.md"), world.bottle("outside")).expect("link");
    assert!(world.refusal("shell", "outside").starts_with("is a link that points outside"));
    fs::write(world.bottle("real"), "---\nsupervise: false\n---\n").expect("file");
    symlink("real.md", world.bottle("inside")).expect("link");
    let selection = Selection { agent: name("shell"), bottles: vec![name("inside")] };
    assert!(resolve(&selection, &Manifests::new(world.homes.clone())).is_ok());
    symlink("nowhere.md", world.bottle("dangling")).expect("link");
    assert!(world.refusal("shell", "dangling").starts_with("cannot be read"));
}

#[test]
fn refuses_a_projects_link_into_the_home() {
    let world = World::new();
    fs::write(world.homes.user_home.join("notes"), "a private note").expect("file");
    let agents = world.homes.cwd.join(".bottle/agents");
    symlink(world.homes.user_home.join("notes"), agents.join("helper.md")).expect("link");
    assert!(world.refusal("helper", "shell").starts_with("is a link that points outside"));
    fs::remove_dir_all(world.homes.cwd.join(".bottle")).expect("remove");
    symlink(&world.homes.bottle_home, world.homes.cwd.join(".bottle")).expect("link");
    fs::write(world.homes.bottle_home.join("agents/own.md"), "Mine.").expect("agent");
    let entry = Manifests::new(world.homes.clone()).find(Kind::Agent, &name("own")).expect("found");
    assert_eq!(entry.expect("own").source.place, Place::Home, "the home seen through a link is the home");
}

#[test]
fn lists_names_without_reading_and_warns_about_other_files() {
    let world = World::new();
    fs::write(world.bottle("broken"), "---\n[").expect("file");
    fs::write(world.homes.bottle_home.join("bottles/My Bottle.md"), "").expect("file");
    fs::write(world.homes.bottle_home.join("bottles/notes.txt"), "").expect("file");
    fs::write(world.homes.bottle_home.join("bottles/.hidden"), "").expect("file");
    fs::write(world.homes.bottle_home.join("bottles/\u{1b}[2J.md"), "").expect("file");
    fs::create_dir(world.homes.cwd.join(".bottle/bottles")).expect("directory");
    fs::write(world.homes.cwd.join(".bottle/bottles/evil.md"), "---\n---\n").expect("file");
    let listing = Manifests::new(world.homes.clone()).list(Kind::Bottle);
    let names: Vec<&str> = listing.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert!(names.contains(&"broken") && names.contains(&"offline") && !names.contains(&"evil"), "{names:?}");
    assert_eq!(listing.warnings.len(), 4, "{:#?}", listing.warnings);
    assert!(listing.warnings.iter().all(|warning| !warning.contains('\u{1b}')), "{:#?}", listing.warnings);
}

#[test]
fn a_working_directory_that_is_the_home_is_no_project() {
    let world = World::new();
    fs::write(world.homes.bottle_home.join("agents/own.md"), "Mine.").expect("agent");
    let homes = Homes { cwd: world.homes.user_home.clone(), ..world.homes.clone() };
    let listing = Manifests::new(homes.clone()).list(Kind::Agent);
    let own = listing.entries.iter().find(|entry| entry.name.as_str() == "own").expect("own");
    assert_eq!((own.source.place, own.replaces), (Place::Home, None));
    assert_eq!(Manifests::new(homes).ignored_bottles(), None);
}
