use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::fs::{CWD, Mode};

use super::*;

/// A test directory with repositories and with hostile variants of them.
struct Scene {
    top: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { top: tempfile::tempdir().expect("a directory") };
        scene.git_directory("victim/.git");
        scene
    }

    fn path(&self, path: &str) -> PathBuf {
        self.top.path().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    /// Creates a directory that git would use as a git directory.
    fn git_directory(&self, path: &str) {
        self.write(&format!("{path}/HEAD"), "ref: refs/heads/main\n");
        for name in ["objects", "refs"] {
            fs::create_dir_all(self.path(path).join(name)).expect("made");
        }
    }

    fn git(&self, directory: &str, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]);
        let output = command.arg("-C").arg(self.path(directory)).args(arguments).output().expect("git");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn repository(&self, path: &str) {
        fs::create_dir_all(self.path(path)).expect("made");
        self.git(path, &["init", "-q", "-b", "main"]);
        self.git(path, &["commit", "-q", "--allow-empty", "-m", "one"]);
    }

    fn at(&self, path: &str) -> Result<Option<Located>, LocateError> {
        at(&self.path(path))
    }

    fn kind(&self, path: &str) -> Option<Kind> {
        self.at(path).unwrap_or_else(|error| panic!("{path}: {error}")).map(|found| found.kind)
    }

    fn problem(&self, path: &str) -> Problem {
        self.at(path).map(|found| found.map(|found| found.kind)).expect_err(path).problem
    }

    fn id(&self, path: &str) -> FileId {
        Directory::open(&self.path(path)).expect("opened").id().expect("an id")
    }
}

#[test]
fn takes_what_git_makes() {
    let scene = Scene::new();
    scene.repository("main");
    scene.repository("library");
    scene.git("main", &["worktree", "add", "-q", "../tree"]);
    scene.git("main", &["submodule", "--quiet", "add", "../library", "deep/lib"]);
    scene.git("main", &["commit", "-qm", "lib"]);
    scene.git("main/deep/lib", &["sparse-checkout", "set", "x"]);
    scene.git("main", &["worktree", "add", "-q", "../other"]);
    scene.git("other", &["submodule", "--quiet", "update", "--init"]);
    scene.git("", &["init", "-q", "--separate-git-dir", "data", "apart"]);
    scene.git("", &["clone", "-q", "--bare", "main", "tools/.bare"]);
    scene.write("tools/.git", "gitdir: ./.bare\n");
    scene.git("tools", &["worktree", "add", "-q", "feature"]);
    for (path, kind) in [
        ("main", Kind::Own),
        ("tree", Kind::Worktree),
        ("main/deep/lib", Kind::Submodule),
        ("other/deep/lib", Kind::Submodule),
        ("apart", Kind::Separate),
        ("tools", Kind::Inside),
        ("tools/feature", Kind::Worktree),
    ] {
        assert_eq!(scene.kind(path), Some(kind), "{path}");
    }
    let tree = scene.at("tree").expect("read").expect("found");
    assert_eq!(tree.common.id().expect("an id"), scene.id("main/.git"));
    assert_eq!(tree.git.id().expect("an id"), scene.id("main/.git/worktrees/tree"));
    assert_eq!(tree.owner, rustix::process::geteuid().as_raw());
    // A moved worktree is refused until git knows its new path.
    fs::rename(scene.path("tree"), scene.path("moved")).expect("moved");
    assert!(matches!(scene.problem("moved"), Problem::OtherTree(_)));
    scene.git("main", &["worktree", "repair", "../moved"]);
    assert_eq!(scene.kind("moved"), Some(Kind::Worktree));
}

#[test]
fn no_name_in_a_project_leads_to_another_repository() {
    let scene = Scene::new();
    let (home, victim) = (scene.path("home"), scene.path("victim/.git"));
    let (home, victim) = (home.display(), victim.display());
    scene.write("home/.ssh/key", "private");
    // A git directory inside the project has a `commondir` that names a directory outside of the project.
    for (name, common) in
        [("to-home", home.to_string()), ("to-victim", victim.to_string()), ("up", "../../victim/.git".into())]
    {
        scene.git_directory(&format!("{name}/g"));
        scene.write(&format!("{name}/.git"), "gitdir: g\n");
        scene.write(&format!("{name}/g/commondir"), format!("{common}\n"));
        assert!(matches!(scene.problem(name), Problem::CommonDirectory(_)), "{name}");
    }
    scene.git_directory("own/.git");
    scene.write("own/.git/commondir", format!("{victim}\n"));
    assert!(matches!(scene.problem("own"), Problem::CommonDirectory(_)));
    // The `commondir` names a directory whose `worktrees` is a link.
    scene.git_directory("linked/g/worktrees/one");
    scene.git_directory("linked/common");
    symlink("../g/worktrees", scene.path("linked/common/worktrees")).expect("link");
    scene.write("linked/g/worktrees/one/commondir", "../../../common\n");
    scene.write("linked/.git", "gitdir: g/worktrees/one\n");
    assert!(matches!(scene.problem("linked"), Problem::CommonDirectory(_)));
    // The `.git` names the git directory of another worktree, or of a submodule of another working tree.
    scene.git_directory("victim/.git/worktrees/one");
    scene.write("victim/.git/worktrees/one/commondir", "../..\n");
    scene.write("victim/.git/worktrees/one/gitdir", format!("{}\n", scene.path("one/.git").display()));
    scene.git_directory("victim/.git/modules/lib");
    scene.write("victim/.git/modules/lib/config", "[core]\n\tworktree = ../../../lib\n");
    fs::create_dir_all(scene.path("victim/lib")).expect("made");
    for (name, named) in [("thief", "worktrees/one"), ("robber", "modules/lib")] {
        scene.write(&format!("{name}/.git"), format!("gitdir: {victim}/{named}\n"));
        assert!(matches!(scene.problem(name), Problem::OtherTree(_)), "{name}");
    }
    // The `.git` is a file or a link, and names a git directory that only the user can confirm.
    scene.write("file/.git", format!("gitdir: {victim}\n"));
    fs::create_dir_all(scene.path("link")).expect("made");
    symlink(scene.path("victim/.git"), scene.path("link/.git")).expect("link");
    fs::create_dir_all(scene.path("through/sub")).expect("made");
    symlink(scene.path("victim"), scene.path("through/sub/v")).expect("link");
    scene.write("through/.git", "gitdir: sub/v/.git\n");
    for name in ["file", "link", "through"] {
        assert_eq!(scene.kind(name), Some(Kind::Separate), "{name}");
        let found = scene.at(name).expect("read").expect("found");
        assert!(found.is_outside() && !found.is_proven(), "{name}");
    }
    // The `.git` names a directory of the user that is not a git directory.
    scene.write("plain/.git", format!("gitdir: {home}\n"));
    symlink(scene.path("home"), scene.path("home/.git")).expect("link");
    for name in ["plain", "home"] {
        assert!(matches!(scene.problem(name), Problem::NotGit(_) | Problem::CommonDirectory(_)), "{name}");
    }
}

#[test]
fn refuses_malformed_names() {
    let scene = Scene::new();
    let long = format!("gitdir: {}", "a/".repeat(1 << 19));
    let cases: [(&str, &[u8]); 9] = [
        ("empty", b""),
        ("blank", b"gitdir: \n"),
        ("prefix", b"gitdir:g\n"),
        ("case", b"GITDIR: g\n"),
        ("nul", b"gitdir: g\0/../../victim/.git\n"),
        ("lines", b"gitdir: g\ng\n"),
        ("return", b"gitdir: g\rg\n"),
        ("binary", b"\xff\xfe"),
        ("long", long.as_bytes()),
    ];
    for (name, text) in cases {
        scene.git_directory(&format!("{name}/g"));
        scene.write(&format!("{name}/.git"), text);
        let problem = scene.problem(name);
        let is_long =
            matches!(&problem, Problem::System(error) if error.kind() == io::ErrorKind::InvalidData);
        assert!(
            if name == "long" { is_long } else { matches!(problem, Problem::NotGitFile) },
            "{name}: {problem:?}"
        );
    }
    // Several line ends are allowed, and a missing line end is allowed too.
    for (name, text) in [("ends", "gitdir: g\r\n\n"), ("none", "gitdir: g")] {
        scene.git_directory(&format!("{name}/g"));
        scene.write(&format!("{name}/.git"), text);
        assert_eq!(scene.kind(name), Some(Kind::Inside), "{name}");
    }
    // The first `.git` names a file that names another git directory. The second `.git` is a named pipe.
    scene.write("chain/.git", "gitdir: g\n");
    scene.write("chain/g", "gitdir: ../victim/.git\n");
    assert!(matches!(scene.problem("chain"), Problem::Missing(_)));
    fs::create_dir_all(scene.path("fifo")).expect("made");
    rustix::fs::mknodat(CWD, scene.path("fifo/.git"), FileType::Fifo, Mode::RWXU, 0).expect("a named pipe");
    assert!(matches!(scene.problem("fifo"), Problem::NotGitFile));
    fs::create_dir_all(scene.path("loop")).expect("made");
    symlink(".git", scene.path("loop/.git")).expect("link");
    assert!(matches!(scene.problem("loop"), Problem::Missing(_)));
}

#[test]
fn no_file_of_a_git_directory_is_followed_or_awaited() {
    let scene = Scene::new();
    scene.write("secret", "ref: refs/heads/main\n");
    let replace = |path: &str| {
        let _ = fs::remove_file(scene.path(path));
        scene.path(path)
    };
    // Git would not use these directories, so there is no repository.
    scene.git_directory("a/.git");
    symlink("/dev/zero", replace("a/.git/HEAD")).expect("link");
    assert_eq!(scene.kind("a"), None);
    symlink("../../secret", replace("a/.git/HEAD")).expect("link");
    assert_eq!(scene.kind("a"), None);
    rustix::fs::mknodat(CWD, replace("a/.git/HEAD"), FileType::Fifo, Mode::RWXU, 0).expect("a named pipe");
    assert_eq!(scene.kind("a"), None);
    symlink("refs/heads/main", replace("a/.git/HEAD")).expect("link");
    assert_eq!(scene.kind("a"), Some(Kind::Own), "the older form of HEAD");
    // If a file that has to prove the ownership is not a regular file, the git directory is refused.
    for file in ["commondir", "config"] {
        let name = format!("of-{file}");
        scene.git_directory(&format!("data-{file}"));
        scene.write(&format!("{name}/.git"), format!("gitdir: ../data-{file}\n"));
        let path = format!("data-{file}/{file}");
        let huge = fs::File::create(scene.path(&path)).expect("made");
        huge.set_len(1 << 40).expect("sparse");
        assert!(scene.at(&name).is_err(), "{name}");
        symlink("/dev/zero", replace(&path)).expect("link");
        assert!(scene.at(&name).is_err(), "{name}");
        rustix::fs::mknodat(CWD, replace(&path), FileType::Fifo, Mode::RWXU, 0).expect("a named pipe");
        assert!(scene.at(&name).is_err(), "{name}");
    }
}

#[test]
fn searches_parents() {
    let scene = Scene::new();
    scene.repository("main");
    fs::create_dir_all(scene.path("main/a/b")).expect("made");
    let found = locate(&scene.path("main/a/b")).expect("read").expect("found");
    assert_eq!((found.kind, found.top.id().expect("an id")), (Kind::Own, scene.id("main")));
    assert!(found.top.path().ends_with("main"), "{:?}", found.top.path());
    // A directory `.git` that git would not use is skipped. Any other bad `.git` is an error.
    fs::create_dir_all(scene.path("main/a/.git")).expect("made");
    assert_eq!(locate(&scene.path("main/a/b")).expect("read").map(|found| found.kind), Some(Kind::Own));
    fs::remove_dir(scene.path("main/a/.git")).expect("removed");
    scene.write("main/a/.git", "gitdir: none\n");
    assert!(matches!(locate(&scene.path("main/a/b")), Err(LocateError { problem: Problem::Missing(_), .. })));
    scene.git("", &["init", "-q", "--bare", "bare.git"]);
    let found = locate(&scene.path("bare.git/refs")).expect("read").expect("found");
    assert_eq!((found.kind, found.git.id().expect("an id")), (Kind::Bare, scene.id("bare.git")));
    fs::create_dir_all(scene.path("plain")).expect("made");
    assert!(locate(&scene.path("none")).is_err());
}

#[test]
fn only_root_trusts_others_and_only_where_they_are() {
    let user = rustix::process::geteuid().as_raw();
    assert!(is_trusted(user, user + 5));
    assert!(!is_trusted(user + 1, user + 5));
    assert_eq!(is_trusted(user + 5, user + 5), user == 0);
}

#[test]
fn a_repository_of_another_user_needs_to_be_where_root_works() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(io::stderr(), "skipped: only root can give files to another user");
        return;
    }
    let scene = Scene::new();
    scene.git_directory("main/.git/worktrees/one");
    scene.git_directory("main/.git");
    scene.write("main/.git/worktrees/one/commondir", "../..\n");
    scene.write("main/.git/worktrees/one/gitdir", "../../../../one/.git\n");
    scene.write("one/.git", "gitdir: ../main/.git/worktrees/one\n");
    assert_eq!(scene.kind("one"), Some(Kind::Worktree));
    let give = |path: &str, user| {
        std::os::unix::fs::chown(scene.path(path), Some(user), Some(user)).expect("given");
    };
    give("main/.git", 12345);
    assert!(matches!(scene.problem("one"), Problem::Owner { owner: 12345, .. }));
    give("one", 12345);
    assert_eq!(scene.kind("one"), Some(Kind::Worktree));
    // If a parent of root's directory contains a repository of another user, the repository is refused. If the
    // directory itself is the repository, the caller decides.
    fs::create_dir_all(scene.path("main/sub")).expect("made");
    assert!(matches!(
        locate(&scene.path("main/sub")),
        Err(LocateError { problem: Problem::Owner { owner: 12345, .. }, .. })
    ));
    let found = locate(&scene.path("main")).expect("read").expect("found");
    assert_eq!((found.kind, found.owner), (Kind::Own, 12345));
}
