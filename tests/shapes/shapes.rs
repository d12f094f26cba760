//! The shapes of repositories.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use rustix::fs::XattrFlags;

/// A shape: the script that makes a repository, and the edits of its agent.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// The script that makes the repository, in an empty directory. `begin NAME` makes a repository with the files that
    /// each agent edits.
    pub(crate) make: &'static str,
    /// A function for changes that a script cannot make. Its argument is the working directory.
    pub(crate) finish: Option<fn(&Path) -> Result<()>>,
    /// The directory in which the bottle is started.
    pub(crate) directory: &'static str,
    /// The top of the repository's working tree.
    pub(crate) top: &'static str,
    /// Further flags of `bottle start`.
    pub(crate) flags: &'static [&'static str],
    /// The edits that the agent makes only in this shape.
    pub(crate) edits: &'static str,
    /// Changed paths that `diff` and `pull --uncommitted` leave out and name in a message: other repositories, and
    /// files for which git would have to run a program of the user.
    pub(crate) left_out: &'static [&'static str],
    /// The paths of `left_out` that a program of the user converts. `diff` compares the unconverted bytes of these
    /// files, as the bottle got them.
    pub(crate) filtered: &'static [&'static str],
    /// The changed paths that `apply` leaves out. `apply` needs no program to convert a file.
    pub(crate) not_applied: &'static [&'static str],
    /// The submodules in which the agent commits. A pull fetches each commit into the user's repository of the
    /// submodule.
    pub(crate) submodules: &'static [&'static str],
    /// Whether the directory itself can be the workspace.
    pub(crate) can_be_live: bool,
    /// Whether the directory is in a repository.
    pub(crate) has_repository: bool,
    /// Whether the bottle also gets the repository, so that the agent can commit.
    pub(crate) commits: bool,
}

impl Shape {
    /// Creates a shape with the repository `it`, in which the bottle is started.
    const fn new(name: &'static str, make: &'static str) -> Self {
        Self {
            name,
            make,
            finish: None,
            directory: "it",
            top: "it",
            flags: &[],
            edits: "",
            left_out: &[],
            filtered: &[],
            not_applied: &[],
            submodules: &[],
            can_be_live: true,
            has_repository: true,
            commits: true,
        }
    }

    /// Starts the bottle in a directory of the repository `top`.
    const fn at(self, directory: &'static str, top: &'static str) -> Self {
        Self { directory, top, ..self }
    }

    const fn edits(self, edits: &'static str) -> Self {
        Self { edits, ..self }
    }

    const fn flags(self, flags: &'static [&'static str]) -> Self {
        Self { flags, ..self }
    }

    const fn finish(self, finish: fn(&Path) -> Result<()>) -> Self {
        Self { finish: Some(finish), ..self }
    }

    /// Sets the changed files that a program of the user converts.
    const fn filtered(self, filtered: &'static [&'static str]) -> Self {
        Self { left_out: filtered, filtered, ..self }
    }

    const fn not_applied(self, not_applied: &'static [&'static str]) -> Self {
        Self { left_out: not_applied, not_applied, ..self }
    }

    const fn submodules(self, submodules: &'static [&'static str]) -> Self {
        Self { submodules, ..self }
    }

    /// Excludes live directories from the shape: the repository of a worktree or a submodule is elsewhere, and a live
    /// directory contains no other repository.
    const fn never_live(self) -> Self {
        Self { can_be_live: false, ..self }
    }

    const fn without_commits(self) -> Self {
        Self { commits: false, ..self }
    }

    /// The directory from which the bottle gets its files.
    pub(crate) fn copied(&self) -> &'static str {
        if self.flags.contains(&"--repository") { self.top } else { self.directory }
    }

    /// The working directory of the agent.
    pub(crate) fn inside(&self) -> String {
        let below = self.directory.strip_prefix(self.copied()).unwrap_or_default();
        format!("/workspace{below}")
    }
}

/// A working tree in which git is in the middle of an operation, with a conflict in a file that the edits do not
/// change.
macro_rules! conflict {
    ($then:literal) => {
        concat!(
            "begin it; cd it; echo a >both; git add -A; git commit -qm a; git switch -qc other; echo theirs >both; \
             git commit -qam theirs; git switch -q main; echo ours >both; git commit -qam ours; ",
            $then
        )
    };
}

pub(crate) const SHAPES: &[Shape] = &[
    Shape::new("plain", "begin it"),
    Shape::new("subdirectory", "mkdir -p main/it; begin main; cd main/it; files; cd ..; git add -A; git commit -qm more")
        .at("main/it", "main")
        .never_live()
        .without_commits(),
    Shape::new("subdirectory-whole", "mkdir -p main/it; begin main; cd main/it; files; cd ..; git add -A; git commit -qm more")
        .at("main/it", "main")
        .flags(&["--repository"])
        .never_live(),
    Shape::new(
        "bare-layout",
        "begin seed; git -C seed branch feature; mkdir it; git clone -q --bare seed it/.bare; \
         echo 'gitdir: ./.bare' >it/.git; git -C it worktree add -q main main; git -C it worktree add -q feature feature",
    )
    .at("it/main", "it/main")
    .never_live(),
    Shape::new("linked-worktree", "begin main; git -C main worktree add -q -b feature ../it").never_live(),
    Shape::new("nested-worktree", "begin it; cd it; git worktree add -q -b feature trees/feature")
        .not_applied(&["trees/feature"])
        .never_live(),
    Shape::new(
        "git-link",
        "begin it; mv it/.git data; ln -s ../data it/.git; git --git-dir=data config core.worktree ../it",
    )
    .never_live(),
    Shape::new("separate-git-directory", "begin from; git clone -q --separate-git-dir data from it")
        .flags(&["--git-dir=../data"])
        .never_live(),
    Shape::new("of-submodule", "begin library; begin main; cd main; git submodule --quiet add ../library it; git commit -qm it")
        .at("main/it", "main/it")
        .never_live(),
    Shape::new("reftable", "begin it --ref-format=reftable"),
    Shape::new("reftable-worktree", "begin main --ref-format=reftable; git -C main worktree add -q -b feature ../it")
        .never_live(),
    Shape::new("sha256", "begin it --object-format=sha256"),
    Shape::new(
        "sparse",
        "begin it; cd it; mkdir left out; echo l >left/file; echo o >out/file; git add -A; git commit -qm more; \
         git sparse-checkout set left sub new",
    ),
    Shape::new(
        "sparse-index",
        "begin it; cd it; mkdir left out; echo l >left/file; echo o >out/file; git add -A; git commit -qm more; \
         git sparse-checkout set --cone --sparse-index left sub new",
    ),
    Shape::new(
        "partial",
        "begin from; cd from; echo zero >code; git commit -qam x; seq 20 >code; git commit -qam y; \
         git config uploadpack.allowFilter true; cd ..; git clone -q --filter=blob:none file://$PWD/from it",
    ),
    Shape::new("shallow", "begin from; git -C from commit -q --allow-empty -m x; git clone -q --depth 1 file://$PWD/from it"),
    Shape::new(
        "lfs",
        "begin it; cd it; echo '*.bin filter=lfs diff=lfs merge=lfs -text' >.gitattributes; \
         head -c 200000 /dev/zero >big.bin; echo small >small.bin; git add -A; git commit -qm lfs",
    ),
    Shape::new(
        "lfs-changed",
        "begin it; cd it; echo '*.bin filter=lfs diff=lfs merge=lfs -text' >.gitattributes; \
         head -c 200000 /dev/zero >big.bin; echo small >small.bin; git add -A; git commit -qm lfs",
    )
    .edits("echo more >>small.bin; echo added >added.bin")
    .without_commits(),
    Shape::new(
        "encrypted",
        "begin it; cd it; echo 'secret* filter=crypt diff=crypt' >.gitattributes; echo hello >secret; \
         echo world >secret2; git add -A; git commit -qm crypt",
    ),
    Shape::new(
        "encrypted-changed",
        "begin it; cd it; echo 'secret* filter=crypt diff=crypt' >.gitattributes; echo hello >secret; \
         echo world >secret2; git add -A; git commit -qm crypt",
    )
    .edits("echo more >>secret")
    .filtered(&["secret"])
    .without_commits(),
    Shape::new(
        "line-endings",
        "begin it; cd it; printf '*.cs text eol=crlf\\n*.id ident\\n*.txt text=auto\\n' >.gitattributes; \
         printf 'one\\ntwo\\n' >p.cs; printf 'one\\ntwo\\n' >q.cs; printf '$Id$\\none\\n' >i.id; cp i.id j.id; echo t >t.txt; \
         git add -A; git commit -qm attributes; rm p.cs q.cs i.id j.id; git checkout -q .",
    )
    .edits("printf 'three\\r\\n' >>p.cs; printf 'two\\n' >>i.id; printf 'a\\r\\nb\\r\\n' >new.cs"),
    Shape::new(
        "automatic-line-endings",
        "begin it; cd it; git config core.autocrlf true; printf 'one\\ntwo\\n' >p.txt; cp p.txt q.txt; git add -A; \
         git commit -qm more; rm p.txt q.txt; git checkout -q .",
    )
    .edits("printf 'three\\r\\n' >>p.txt"),
    Shape::new(
        "encoding",
        "begin it; cd it; echo '*.u16 text working-tree-encoding=UTF-16LE eol=lf' >.gitattributes; \
         printf 'a\\0\\n\\0' >a.u16; git add -A; git commit -qm encoding",
    ),
    Shape::new(
        "worktree-configuration",
        "begin it; cd it; git config extensions.worktreeConfig true; git config --worktree core.autocrlf input; \
         git worktree add -q -b feature ../other",
    ),
    Shape::new("detached", "begin it; cd it; git commit -q --allow-empty -m two; git checkout -q HEAD~1"),
    Shape::new("rebase", conflict!("git rebase -q other || true")),
    Shape::new("merge", conflict!("git merge -q other || true")),
    Shape::new("cherry-pick", conflict!("git cherry-pick other || true")),
    Shape::new("unborn", "git init -q it; cd it; files; echo mine >mine"),
    Shape { has_repository: false, commits: false, ..Shape::new("no-git", "mkdir it; cd it; files") },
    Shape::new(
        "assume-unchanged",
        "begin it; cd it; echo a >assumed; git add -A; git commit -qm a; git update-index --assume-unchanged assumed; \
         echo mine >assumed",
    ),
    Shape::new(
        "skip-worktree",
        "begin it; cd it; echo a >skipped; echo b >missing; git add -A; git commit -qm a; \
         git update-index --skip-worktree skipped missing; echo mine >skipped; rm missing",
    ),
    Shape::new("intent-to-add", "begin it; cd it; echo i >intended; git add -N intended"),
    Shape::new(
        "case",
        "begin it; cd it; echo r >readme; echo one >Both; echo two >both; mkdir Dir; echo d >Dir/file; git add -A; git commit -qm case",
    )
    .edits("mv readme README; mv Dir dir; echo three >>both"),
    Shape::new(
        "linked-directories",
        "begin it; cd it; mkdir real real2; echo r >real/file; echo s >real2/file; ln -s real alias; ln -s /etc outside; \
         ln -s nowhere broken; ln -s ../home above; git add -A; git commit -qm links",
    )
    .edits("echo x >>alias/file; rm broken; ln -s real2 broken; rm alias; ln -s real2 alias"),
    Shape::new(
        "odd-names",
        "begin it; cd it; for name in \"$(printf 'b\\377\\376d')\" \"$(printf 'new\\nline')\" 'quo\"te' \"tab\tbed\" ' space ' -dash \
         'back\\slash' '$(touch x)' ünïcode '*' '[a]' ':colon' '#hash' '!bang'; do echo x >\"./$name\"; done; git add -A; \
         git commit -qm names",
    )
    .edits(
        "echo y >>\"$(printf 'b\\377\\376d')\"; echo y >>\"$(printf 'new\\nline')\"; echo y >>'quo\"te'; echo y >>./-dash; \
         rm '$(touch x)'; mv ' space ' '  spaces'; echo n >\"$(printf 'n\\375w')\"; echo y >>'*'; echo y >>ünïcode",
    ),
    Shape::new("nested-repository", "begin it; cd it; begin vendor/inner; echo x >vendor/beside; git add vendor/beside; git commit -qm v")
        .not_applied(&["vendor/inner"])
        .never_live(),
    Shape::new(
        "nested-changed",
        "begin it; cd it; begin vendor/inner; echo x >vendor/beside; git add vendor/beside; git commit -qm v",
    )
    .edits("echo x >>vendor/inner/code")
    .not_applied(&["vendor/inner"])
    .never_live(),
    Shape::new("submodule", "begin library; begin it; cd it; git submodule --quiet add ../library sub2; git commit -qm library")
        .never_live(),
    Shape::new(
        "submodule-dirty",
        "begin library; begin it; cd it; git submodule --quiet add ../library sub2; git commit -qm library; echo mine >>sub2/code",
    )
    .never_live(),
    Shape::new(
        "submodule-changed",
        "begin library; begin it; cd it; git submodule --quiet add ../library sub2; git commit -qm library",
    )
    .edits("echo x >>sub2/code")
    .not_applied(&["sub2"])
    .never_live(),
    Shape::new(
        "submodule-committed",
        "begin library; begin it; cd it; git submodule --quiet add ../library sub2; git commit -qm library",
    )
    .edits(
        "cd sub2; echo x >>code; echo n >new; export GIT_AUTHOR_DATE=2024-06-06T00:00:00Z GIT_COMMITTER_DATE=2024-06-06T00:00:00Z; \
         export GIT_AUTHOR_NAME=A GIT_COMMITTER_NAME=A GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_EMAIL=a@example.com; \
         git add -A; git commit -qm inside",
    )
    .not_applied(&["sub2"])
    .submodules(&["sub2"])
    .never_live(),
    Shape::new(
        "hooks",
        "begin it; cd it; mkdir .husky; printf '#!/bin/sh\\nexit 1\\n' >.husky/pre-commit; chmod +x .husky/pre-commit; \
         git add -A; git commit -qm hooks; git config core.hooksPath .husky; cp .husky/pre-commit .git/hooks",
    ),
    Shape::new(
        "signing",
        "begin it; cd it; git config commit.gpgsign true; git config tag.gpgsign true; git config gpg.format ssh; \
         git config user.signingkey /nonexistent; git config core.editor false; git config credential.helper '!false'",
    ),
    Shape::new(
        "global-excludes",
        "mkdir -p home/.config/git; echo '*.log' >home/.config/git/ignore; begin it; cd it; echo l >run.log; \
         echo keep >keep.log; git add -f keep.log; git commit -qm keep",
    ),
    Shape::new(
        "configured-excludes",
        "echo '*.log' >home/ignored; git config --file home/.gitconfig core.excludesFile '~/ignored'; begin it; cd it; \
         echo l >run.log; echo '/local' >>.git/info/exclude; echo l >local",
    ),
    Shape::new(
        "parent-ignore",
        "printf '*\\n*.log\\nsub/\\n' >.gitignore; begin it; cd it; echo keep >keep.log; git add -A; git commit -qm keep",
    ),
    Shape::new(
        "tracked-and-ignored",
        "begin it; cd it; printf '*.log\\nbuild/\\n' >>.gitignore; mkdir build; echo l >keep.log; echo b >build/x; \
         git add -f .; git commit -qm one; echo new >new.log",
    )
    .edits("echo two >>build/x; echo two >>keep.log"),
    Shape::new("huge", "begin it; cd it; truncate -s 100M huge; git add -A; git commit -qm huge"),
    Shape::new(
        "read-only-directory",
        "begin it; cd it; mkdir fixed; echo f >fixed/file; git add -A; git commit -qm fixed; chmod 444 fixed/file; chmod 555 fixed",
    ),
    Shape::new("attributes", "begin it; cd it; mkdir shared; echo s >shared/file; git add -A; git commit -qm shared")
        .finish(attributes),
    Shape::new(
        "permissions",
        "begin it; cd it; mkdir only; echo k >key; echo s >shared; echo c >only/certificate; seq 9 >moved; git add -A; \
         git commit -qm keys",
    )
    .finish(permissions)
    .edits("echo two >>key; chmod u+x key; echo two >>shared; mv moved moved-key; mv only/certificate only/renamed"),
    Shape::new(
        "instead-of",
        "begin it; cd it; git remote add origin https://git.example.test/r.git; \
         git config url.ssh://git@git.example.test/.insteadOf https://git.example.test/; \
         git config url./nonexistent/.pushInsteadOf https://git.example.test/",
    ),
    Shape::new(
        "build-output",
        "begin it; cd it; mkdir -p target/debug node_modules/a; echo 'node_modules' >>.gitignore; git commit -qam ignore; \
         echo o >target/debug/out; echo o >node_modules/a/index.js; echo o >x.o",
    ),
    Shape::new(
        "dirty-index",
        "begin it; cd it; for name in staged unstaged both removed; do echo $name >$name; done; git add -A; git commit -qm more; \
         echo 2 >>staged; git add staged; echo 2 >>unstaged; echo 2 >>both; git add both; echo 3 >>both; git rm -q --cached removed; \
         echo u >untracked; echo n >added-by-user; git add added-by-user",
    ),
    Shape::new("stash", "begin it; cd it; echo s >>code; echo u >untracked; git stash push -q -u; git stash list"),
    Shape::new("packed", "begin it; cd it; git branch other; git tag one; git pack-refs --all; git gc -q; git commit-graph write"),
    Shape::new("tags-and-notes", "begin it; cd it; git tag -a -m one v1; git tag light; git notes add -m note"),
    Shape::new("split-index", "begin it; cd it; git config core.splitIndex true; git update-index --split-index; echo t >tracked.o; git add -f tracked.o; git commit -qm t"),
    Shape::new("index-version-4", "begin it; cd it; git config index.version 4; git update-index --index-version 4 --untracked-cache; echo x >x; git add x; git commit -qm x"),
    Shape::new("alternates", "begin from; git clone -q --shared from it").flags(&["--git-dir=../from"]),
    Shape::new(
        "alternates-of-alternates",
        "begin from; git clone -q --shared from two; cd two; echo 2 >two; git add two; git commit -qm two; cd ..; \
         git clone -q --shared two it; echo 3 >it/three; git -C it add three; git -C it commit -qm three",
    )
    .flags(&["--git-dir=../from/.git", "--git-dir=../two/.git/objects"]),
    Shape::new(
        "linked-objects",
        "begin it; mkdir -p .repo/objects; mv it/.git .repo/it.git; git init -q --bare .repo/objects/it.git; \
         rm -r .repo/objects/it.git/objects; mv .repo/it.git/objects .repo/objects/it.git/objects; \
         ln -s ../objects/it.git/objects .repo/it.git/objects; git --git-dir=.repo/it.git config core.worktree ../../it; \
         ln -s ../.repo/it.git it/.git",
    )
    .flags(&["--git-dir=../.repo/objects/it.git"])
    .never_live(),
    Shape::new("two-roots", "begin it; cd it; git checkout -q --orphan second; git commit -qm second; git switch -q main; git merge -q --allow-unrelated-histories -m both second"),
    Shape::new("empty-directories", "begin it; cd it; mkdir -p empty/inner"),
    Shape::new("hard-links", "begin it; cd it; ln sub/stays twin; git add -A; git commit -qm twin"),
];

/// Extended attributes and an access control list, on a file that the agent edits, on other files, and on a directory.
fn attributes(directory: &Path) -> Result<()> {
    // Version 2: the owner rw, the user 12345 rw, the group r, the mask rw, others r.
    const LIST: &[u8] =
        b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\x39\x30\0\0\x04\0\x04\0\xff\xff\xff\xff\
        \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    for path in ["code", "shared/file"] {
        let path = directory.join(path);
        rustix::fs::setxattr(&path, "user.origin", b"mine", XattrFlags::empty())?;
        rustix::fs::setxattr(&path, "system.posix_acl_access", LIST, XattrFlags::empty())?;
    }
    rustix::fs::setxattr(directory.join("shared"), "user.origin", b"mine", XattrFlags::empty())?;
    Ok(())
}

/// Permissions that git does not store.
fn permissions(directory: &Path) -> Result<()> {
    for (path, mode) in [
        ("key", 0o600),
        ("moved", 0o600),
        ("only", 0o700),
        ("shared", 0o664),
        ("code", 0o640),
        ("sub", 0o700),
        ("sub/deep", 0o775),
    ] {
        fs::set_permissions(directory.join(path), fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}
