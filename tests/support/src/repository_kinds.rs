//! Kinds of repositories in which an agent works, and the check that `diff`, `apply` and `pull` get its work out of a
//! bottle.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};

use crate::home::TestHome;
use crate::program::Outcome;

/// A kind of repository: its name, a script that makes such a repository in an empty directory, the working directory
/// of the bottle, and the path of this directory in the repository.
pub type Kind = (&'static str, &'static str, &'static str, &'static str);

/// The kinds of repositories. [`BEGIN`] defines `begin`, which makes a repository with a file `code`.
pub const KINDS: [Kind; 14] = [
    ("ordinary", "begin it", "it", ""),
    (
        "subdirectory",
        "begin it; cd it; mkdir sub; mv code sub; git add -A; git commit -qm sub",
        "it/sub",
        "sub/",
    ),
    (
        "lfs",
        "begin it; cd it; echo '*.bin filter=lfs diff=lfs merge=lfs -text' >.gitattributes; \
         printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%064d\\nsize 9\\n' 0 >a.bin; \
         git add -A; git commit -qm lfs",
        "it",
        "",
    ),
    ("worktree", "begin main; git -C main worktree add -q ../it", "it", ""),
    ("git-file", "begin from; git clone -q --separate-git-dir data from it", "it", ""),
    (
        "submodule",
        "begin library; begin it; cd it; git submodule --quiet add ../library; git commit -qm library",
        "it",
        "",
    ),
    (
        "of-submodule",
        "begin library; begin main; cd main; git submodule --quiet add ../library it",
        "main/it",
        "",
    ),
    (
        "shallow",
        "begin from; git -C from commit -q --allow-empty -m x; git clone -q --depth 1 file://$PWD/from it",
        "it",
        "",
    ),
    (
        "partial",
        "begin from; cd from; echo zero >code; git commit -qam x; echo one >code; git commit -qam y; cd ..; \
         git -C from config uploadpack.allowFilter true; git clone -q --filter=blob:none file://$PWD/from it",
        "it",
        "",
    ),
    (
        "sparse",
        "begin it; cd it; mkdir left out; touch left/x out/x; git add -A; git commit -qm more; \
         git sparse-checkout set left",
        "it",
        "",
    ),
    // An older git than 2.46 leaves the references in files.
    ("reftable", "begin it; git -C it refs migrate --ref-format=reftable || :", "it", ""),
    (
        "reftable-worktree",
        "begin main; git -C main refs migrate --ref-format=reftable || :; git -C main worktree add -q ../it",
        "it",
        "",
    ),
    (
        "git-link",
        "begin it; mkdir -p .repo/projects; mv it/.git .repo/projects/it.git; \
         ln -s ../.repo/projects/it.git it/.git; \
         git --git-dir .repo/projects/it.git config core.worktree ../../../it",
        "it",
        "",
    ),
    (
        "settings",
        "begin it; cd it; for setting in commit.gpgsign=true user.signingkey=none core.hooksPath=.hooks \
         core.editor=false core.fsmonitor=/none/watch filter.x.clean=/none/clean filter.x.required=true \
         commit.template=/none/template; do git config ${setting%%=*} ${setting#*=}; done; \
         printf '#!/bin/sh\nexit 1\n' >.git/hooks/commit-msg; chmod +x .git/hooks/commit-msg",
        "it",
        "",
    ),
];

const BEGIN: &str = "git() { command git -c user.name=Ann -c user.email=ann@example.com -c init.defaultBranch=main \
     -c protocol.file.allow=always -c advice.detachedHead=false \"$@\"; }; \
     begin() { mkdir $1; (cd $1; git init -q; echo one >code; printf 'built\\n' >.gitignore; \
     git add -A; git commit -qm begin); }; ";

fn shell(directory: &Path, script: &str) -> Result<String> {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-ec", &format!("{BEGIN}{script}")]).current_dir(directory);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output()?;
    ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// One kind of repository, with a bottle that has a copy of the repository.
pub struct Case<'a> {
    home: &'a TestHome,
    /// The name of the bottle.
    pub slug: String,
    /// The working directory.
    pub directory: PathBuf,
    root: PathBuf,
    prefix: &'static str,
    commits: bool,
}

impl<'a> Case<'a> {
    /// Makes a repository of this kind. `commits` says whether the agent commits its work.
    ///
    /// # Errors
    /// Returns an error if a command of git fails.
    pub fn new(home: &'a TestHome, kind: &Kind, commits: bool) -> Result<Self> {
        let (kind, script, directory, prefix) = *kind;
        let slug = format!("{kind}-{}", if commits { "committed" } else { "uncommitted" });
        let root = home.outside(&slug);
        fs::create_dir_all(&root)?;
        shell(&root, script)?;
        Ok(Self { home, directory: root.join(directory), root, slug, prefix, commits })
    }

    /// Runs a `bottle` command, which must succeed, in the working directory.
    ///
    /// # Errors
    /// Returns an error if the command fails.
    pub fn bottle(&self, arguments: &[&str]) -> Result<Outcome> {
        let mut program = self.home.program(arguments.iter().copied())?;
        program.directory(&self.directory);
        let outcome = program.run()?;
        ensure!(outcome.code == 0, "{}: {arguments:?}: {}", self.slug, outcome.transcript());
        Ok(outcome)
    }

    /// The flag that confirms a git directory outside of the working directory. The flag is needed if the git directory
    /// does not name the working directory.
    #[must_use]
    pub fn confirms(&self) -> Option<String> {
        let data = self.root.join("data");
        data.is_dir().then(|| format!("--git-dir={}", data.display()))
    }

    /// Checks that each of the commands `diff`, `apply` and `pull` gets the work of [`work`] out of the bottle.
    ///
    /// # Errors
    /// Returns an error if a command fails, or its result is not the work.
    pub fn comes_out(&self, lines: &[&str]) -> Result<()> {
        let (slug, last) = (self.slug.as_str(), lines[lines.len() - 1]);
        let diff = self.bottle(&["diff", slug])?;
        let names = self.bottle(&["diff", slug, "--name-only"])?.stdout;
        ensure!(diff.stdout.contains(&format!("\n+{last}\n")), "{slug}: {}", diff.transcript());
        let paths: Vec<String> =
            [&["code"], lines].concat().iter().map(|name| format!("{}{name}", self.prefix)).collect();
        let mut found: Vec<&str> = names.lines().collect();
        found.sort_unstable();
        let mut wanted = paths.clone();
        wanted.sort_unstable();
        ensure!(found == wanted, "{slug}: {found:?} {wanted:?}");
        let _ = self.bottle(&["apply", slug, "--yes"])?;
        let code = fs::read_to_string(self.directory.join("code"))?;
        ensure!(code == format!("one\n{}\n", lines.join("\n")), "{slug}: {code}");
        ensure!(
            self.directory.join(last).exists() && !self.directory.join("built").exists(),
            "{slug}: files"
        );
        let pull = ["pull", slug, "--uncommitted"];
        let pulled = self.bottle(&pull[..if self.commits { 2 } else { 3 }])?;
        // A commit in a repository that the agent made has the paths of the workspace.
        let own = self.commits && !self.prefix.is_empty();
        let prefix = if own { "" } else { self.prefix };
        let shown = shell(
            &self.directory,
            &format!("git show bottle/{slug}:{prefix}code; git show bottle/{slug}:{prefix}{last}"),
        )?;
        ensure!(shown == code, "{slug}: {shown}: {}", pulled.transcript());
        if self.prefix.is_empty() {
            let deleted =
                shell(&self.directory, &format!("git diff --diff-filter=D --name-only HEAD bottle/{slug}"))?;
            ensure!(deleted.is_empty(), "{slug}: {deleted}");
        }
        Ok(())
    }
}

/// The directories beside a repository of any kind: a repository, a directory of the same repository if the kind has
/// another directory, and a directory without a repository.
const BESIDE: &str = "begin beside; mkdir plain; echo one >plain/code; touch plain/.gitignore";

impl Case<'_> {
    /// Makes directories beside the repository. Returns the flags that copy all of them, and the names of those that
    /// are repositories.
    ///
    /// # Errors
    /// Returns an error if a command of git fails.
    pub fn beside(&self) -> Result<(Vec<String>, Vec<String>)> {
        shell(&self.root, BESIDE)?;
        let path = |path: &Path| path.strip_prefix(&self.root).map(|path| path.display().to_string());
        let own = path(&self.directory)?;
        let mut directories = vec![own.clone(), "beside".to_owned()];
        if self.root.join("main").is_dir() && !own.starts_with("main") {
            directories.push("main".to_owned());
        }
        let name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
        let repositories = directories.iter().map(name).collect();
        directories.push("plain".to_owned());
        let flag = |path: &String| format!("--cwd={}", self.root.join(path).display());
        Ok((directories.iter().map(flag).collect(), repositories))
    }

    /// Checks that each of the commands `diff`, `apply` and `pull` gets the work of [`work`] out of each of these
    /// directories.
    ///
    /// # Errors
    /// Returns an error if a command fails, or its result is not the work.
    pub fn comes_out_of_directories(&self, names: &[String], lines: &[&str]) -> Result<()> {
        let (slug, last) = (self.slug.as_str(), lines[lines.len() - 1]);
        let path_of = |name: &str| match self.directory.ends_with(name) {
            true => self.directory.clone(),
            false => self.root.join(name),
        };
        let paths = [&["code"], lines].concat();
        let mut wanted: Vec<String> = Vec::new();
        names.iter().for_each(|name| wanted.extend(paths.iter().map(|path| format!("{name}/{path}"))));
        wanted.sort_unstable();
        let listed = self.bottle(&["diff", slug, "--name-only"])?;
        let mut found: Vec<&str> = listed.stdout.lines().collect();
        found.sort_unstable();
        ensure!(found == wanted, "{slug}: {found:?} {wanted:?}");
        // The directory without a repository is compared too, and has no changes.
        ensure!(!listed.stderr.contains("plain"), "{slug}: {}", listed.stderr);
        // The check runs only for the first line of work, because later the directories already have a part of the
        // patch.
        for name in names.iter().filter(|_| lines.len() == 1) {
            let patch = self.bottle(&["diff", slug, "--directory", name])?.stdout;
            fs::write(self.root.join("patch"), patch)?;
            let check = "cd \"$(git rev-parse --show-toplevel)\"; git apply --check";
            shell(&path_of(name), &format!("{check} {}", self.root.join("patch").display()))?;
        }
        let _ = self.bottle(&["apply", slug, "--yes"])?;
        let pull = ["pull", slug, "--uncommitted"];
        let pulled = self.bottle(&pull[..if self.commits { 2 } else { 3 }])?;
        for name in names {
            let directory = path_of(name);
            let code = fs::read_to_string(directory.join("code"))?;
            ensure!(code == format!("one\n{}\n", lines.join("\n")), "{slug}: {name}: {code}");
            let line = format!("{name}: bottle/");
            let branch = pulled.stdout.lines().find(|found| found.starts_with(&line));
            let branch = branch.and_then(|found| found.strip_prefix(&format!("{name}: ")));
            let branch = branch.ok_or_else(|| anyhow::anyhow!("{slug}: {}", pulled.transcript()))?;
            let is_own = directory == self.directory && (!self.commits || self.prefix.is_empty());
            let prefix = if is_own { self.prefix } else { "" };
            let shown = shell(
                &directory,
                &format!("git show {branch}:{prefix}code; git show {branch}:{prefix}{last}"),
            )?;
            ensure!(shown == code, "{slug}: {name}: {shown}: {}", pulled.transcript());
        }
        ensure!(
            fs::read_to_string(self.root.join("plain/code"))? == "one\n",
            "{slug}: the plain directory changed"
        );
        Ok(())
    }
}

/// A script with which an agent appends a line and creates a file. If `commits` is set, the script commits both
/// changes.
pub fn work(line: &str, commits: bool) -> String {
    let commit = format!(
        "; git rev-parse --quiet --git-dir >/dev/null 2>&1 || git init -q; git add code {line}; \
         git -c user.name=A -c user.email=a@example.com commit -qm work"
    );
    let commit = if commits { &commit } else { "" };
    format!("echo {line} >>code; touch {line}; mkdir -p built; touch built/x{commit}")
}

/// Calls `test` with each number below `count`, on `threads` threads.
///
/// # Errors
/// Returns all errors together.
pub fn each(count: usize, threads: usize, test: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    if let Err(error) = test(number) {
                        failed.lock().expect("no panic").push(format!("{error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner()?;
    ensure!(failed.is_empty(), "{}", failed.join("\n\n"));
    Ok(())
}
