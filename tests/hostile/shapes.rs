//! Cases of repositories with an unusual layout: the place of the git directory, and the files that it borrows.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;

use crate::Case;
use crate::place::{CANARY, Place};

/// The hooks of git (githooks(5)).
pub(crate) const HOOKS: [&str; 28] = [
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("hooks", hooks),
        Case::new("git-file-home", |place| {
            // A git directory in the project whose `commondir` is the user's home.
            git_directory(place, "project/g")?;
            place.write("project/.git", "gitdir: g\n")?;
            place.write("project/g/commondir", format!("{}\n", place.text("home")))
        }),
        Case::new("git-file-victim", |place| {
            place.write("project/.git", format!("gitdir: {}\n", place.text("victim/.git")))
        }),
        Case::new("git-file-relative", |place| place.write("project/.git", "gitdir: ../victim/.git\n")),
        Case::new("git-file-link", |place| {
            place.link(place.path("victim/.git"), "project/g")?;
            place.write("project/.git", "gitdir: g\n")
        }),
        Case::new("git-file-chain", |place| {
            place.write("project/g", "gitdir: ../victim/.git\n")?;
            place.write("project/.git", "gitdir: g\n")
        }),
        Case::new("git-file-long", |place| {
            place.write("project/.git", format!("gitdir: {}", "../".repeat(400_000)))
        }),
        Case::new("git-file-nul", |place| {
            place.write("project/.git", format!("gitdir: {}\0/x\n", place.text("victim/.git")))
        }),
        Case::new("git-link-home", |place| place.link(place.path("home"), "project/.git")),
        Case::new("git-link-victim", |place| place.link(place.path("victim/.git"), "project/.git")),
        Case::new("common-directory", |place| {
            place.repository("project")?;
            place.write("project/.git/commondir", format!("{}\n", place.text("victim/.git")))
        }),
        Case::new("forged-worktree", |place| {
            // The user's repository has a worktree, but this worktree is not the project.
            git_directory(place, "victim/.git/worktrees/one")?;
            place.write("victim/.git/worktrees/one/commondir", "../..\n")?;
            place.write("victim/.git/worktrees/one/gitdir", format!("{}\n", place.text("one/.git")))?;
            place.write("project/.git", format!("gitdir: {}\n", place.text("victim/.git/worktrees/one")))
        }),
        Case::new("forged-common-directory", |place| {
            git_directory(place, "project/g/worktrees/one")?;
            place.write("project/g/worktrees/one/gitdir", format!("{}\n", place.text("project/.git")))?;
            place.write("project/g/worktrees/one/commondir", format!("{}\n", place.text("victim/.git")))?;
            place.write("project/.git", "gitdir: g/worktrees/one\n")
        }),
        Case::new("forged-submodule", |place| {
            git_directory(place, "victim/.git/modules/lib")?;
            place.write("victim/.git/modules/lib/config", "[core]\n\tworktree = ../../../lib\n")?;
            place.write("project/.git", format!("gitdir: {}\n", place.text("victim/.git/modules/lib")))
        }),
        Case::new("core-worktree", |place| {
            place.repository("project")?;
            place.configure("core.worktree", &place.text("home"))
        }),
        Case::new("nested-git-file", |place| {
            place.repository("project")?;
            place.write("project/sub/.git", "gitdir: ../../victim/.git\n")
        }),
        Case::new("nested-repository", |place| {
            place.repository("project")?;
            place.repository("project/sub/inner")?;
            let config = fs::read_to_string(place.path("project/sub/inner/.git/config"))?;
            let monitor = crate::place::entry("core.fsmonitor", &place.program("nested")?)?;
            place.write("project/sub/inner/.git/config", format!("{config}{monitor}"))
        }),
        Case::new("alternates", |place| {
            place.repository("project")?;
            let victim = place.text("victim/.git/objects");
            place.write("project/.git/objects/info/alternates", format!("{victim}\n/dev/zero\n../../../x\n"))
        }),
        Case::new("alternates-loop", |place| {
            place.repository("project")?;
            let own = place.text("project/.git/objects");
            place.write("project/.git/objects/info/alternates", format!("{own}\n").repeat(5000))
        }),
        Case::new("http-alternates", |place| {
            place.repository("project")?;
            place.write("project/.git/objects/info/http-alternates", "http://127.0.0.1:9/x\n")
        }),
        Case::new("objects-link", |place| {
            place.repository("project")?;
            place.link(place.path("victim/.git/objects"), "project/.git/objects")
        }),
        Case::new("refs-link", |place| {
            place.repository("project")?;
            place.link(place.path("home"), "project/.git/refs/heads/x")
        }),
        Case::new("bare", |place| {
            place.repository("other")?;
            place.git("", &["clone", "-q", "--bare", "other", "project/bare.git"])?;
            place.write("project/bare.git/hooks/update", "#!/bin/sh\n")?;
            place.write("project/.git", "gitdir: bare.git\n")
        }),
        Case {
            name: "reftable".to_owned(),
            make: Box::new(|place| {
                let made = place.git("project", &["init", "-q", "--ref-format=reftable"]);
                if let Err(error) = made {
                    return Ok(Some(format!("{error:#}")));
                }
                place.write("project/code", "one\n")?;
                place.git("project", &["add", "-A"])?;
                place.git("project", &["commit", "-qm", "one"])?;
                place.configure("core.fsmonitor", &place.program("reftable")?)?;
                Ok(None)
            }),
        },
        Case::new("promisor", promisor),
        Case::new("include", |place| {
            place.repository("project")?;
            let hooks = crate::place::entry("core.fsmonitor", &place.program("include")?)?;
            place.write("project/evil.config", hooks)?;
            place.configure("include.path", "../evil.config")?;
            place.configure("includeIf.gitdir:/**.path", "../evil.config")
        }),
        Case::new("include-pipe", |place| {
            place.repository("project")?;
            crate::files::pipe(place, "project/pipe")?;
            place.configure("include.path", "../pipe")
        }),
        Case::new("worktree-configuration", |place| {
            place.repository("project")?;
            place.configure("extensions.worktreeConfig", "true")?;
            let monitor = crate::place::entry("core.fsmonitor", &place.program("worktree-configuration")?)?;
            place.write("project/.git/config.worktree", monitor)
        }),
        Case::new("transport", |place| {
            place.repository("project")?;
            let program = place.program("transport")?;
            place.configure(&format!("url.ext::{program} .insteadOf"), "/")?;
            place.configure(&format!("url.ext::{program}  .pushInsteadOf"), "/")?;
            place.configure("protocol.ext.allow", "always")?;
            place.configure("protocol.allow", "always")
        }),
        Case::new("submodules", |place| {
            place.repository("project")?;
            let program = place.program("submodules")?;
            let text = format!(
                "[submodule \"sub\"]\n\tpath = sub\n\turl = ext::{program}\n\tupdate = !{program}\n\
                 [submodule \"../../x\"]\n\tpath = .git/hooks\n\turl = {}\n",
                place.text("victim")
            );
            place.write("project/.gitmodules", text)
        }),
        Case::new("parent", |place| {
            // The directory above the project is another repository.
            place.repository("project/sub/deep")?;
            fs::remove_dir_all(place.path("project/sub/deep/.git"))?;
            place.repository("project")?;
            place.configure("core.fsmonitor", &place.program("parent")?)
        }),
        Case::new("relative-programs", |place| {
            place.repository("project")?;
            for name in ["git", "sh", "ssh"] {
                let program = place.program(&format!("relative-{name}"))?;
                place.write(&format!("project/{name}"), fs::read(&program)?)?;
                let mode = fs::Permissions::from_mode(0o755);
                fs::set_permissions(place.path(&format!("project/{name}")), mode)?;
            }
            Ok(())
        }),
    ]
}

fn hooks(place: &Place) -> Result<()> {
    place.repository("project")?;
    for hook in HOOKS {
        let program = place.program(&format!("hook-{hook}"))?;
        let target = place.clear(&format!("project/.git/hooks/{hook}"))?;
        fs::copy(program, target)?;
    }
    Ok(())
}

/// A partial clone whose transport is a program. The ignore file exists only as an object, and this object may be
/// missing.
fn promisor(place: &Place) -> Result<()> {
    place.repository("project")?;
    place.git("project", &["update-index", "--skip-worktree", ".gitignore", "code"])?;
    fs::remove_file(place.path("project/.gitignore"))?;
    for directory in fs::read_dir(place.path("project/.git/objects"))?.flatten() {
        // In each directory of objects, one object is removed. Git would fetch these objects.
        if directory.file_name().len() == 2 {
            for object in fs::read_dir(directory.path())?.flatten().take(1) {
                fs::remove_file(object.path())?;
            }
        }
    }
    let program = place.program("promisor")?;
    for (key, value) in [
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.url", "ssh://host/path"),
        ("remote.evil.promisor", "true"),
        ("remote.evil.uploadpack", &program),
        ("core.sshCommand", &program),
    ] {
        place.configure(key, value)?;
    }
    Ok(())
}

/// Creates a directory that git would use. Its file `description` shows where the directory came from.
fn git_directory(place: &Place, path: &str) -> Result<()> {
    place.write(&format!("{path}/HEAD"), "ref: refs/heads/main\n")?;
    place.write(&format!("{path}/description"), if path.starts_with("victim") { CANARY } else { "own" })?;
    for directory in ["objects", "refs"] {
        fs::create_dir_all(place.path(path).join(directory))?;
    }
    Ok(())
}
