//! Runs everyday git workflows through the gate and over plain ssh. Compares the exit codes, the outputs and the
//! resulting refs of the upstream. `docs/manifests.md` lists all differences.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use bottle_protocol::session::git_gate::GateRefs;

use crate::scene::{Scene, hook};

/// A workflow: the name, the script, and the reason why the result through the gate differs, if it does.
type Workflow = (&'static str, &'static str, Option<&'static str>);

const SAME: Option<&str> = None;

/// The first commands of most scripts.
const CLONE: &str = "git clone -q $URL c; cd c; ";

const FETCHES: &[Workflow] = &[
    ("clone", "@git log --format=%H", SAME),
    ("clone of a branch", "git clone -q -b topic $URL c; git -C c rev-parse HEAD", SAME),
    ("clone of a missing branch", "git clone -q -b missing $URL c", SAME),
    ("bare clone", "git clone -q --bare $URL c; git -C c for-each-ref", SAME),
    ("mirror clone", "git clone -q --mirror $URL c; git -C c for-each-ref", SAME),
    ("clone with protocol 0", "git -c protocol.version=0 clone -q $URL c; git -C c for-each-ref", SAME),
    ("clone with protocol 1", "git -c protocol.version=1 clone -q $URL c; git -C c for-each-ref", SAME),
    ("shallow clone", "git clone -q --depth 1 $URL c; git -C c rev-list --all", SAME),
    (
        "shallow clone without a tag's history",
        "git clone -q --shallow-exclude=v1 $URL c; git -C c rev-list HEAD",
        SAME,
    ),
    ("deepen", "git clone -q --depth 1 $URL c; cd c; git fetch -q --deepen=1; git rev-list HEAD", SAME),
    ("unshallow", "git clone -q --depth 1 $URL c; cd c; git fetch -q --unshallow; git rev-list HEAD", SAME),
    ("partial clone", "git clone -q --filter=blob:none $URL c; cd c; cat one; git log -p --format=%H", SAME),
    ("treeless clone", "git clone -q --filter=tree:0 $URL c; cd c; git log --stat --format=%H", SAME),
    (
        "sparse checkout",
        "git clone -q --no-checkout --filter=blob:none $URL c; cd c; git sparse-checkout set dir; git checkout -q; ls -R",
        SAME,
    ),
    ("clone of a single branch", "git clone -q --single-branch $URL c; git -C c for-each-ref", SAME),
    ("clone without tags", "git clone -q --no-tags $URL c; git -C c for-each-ref", SAME),
    (
        "clone with a reference",
        "@cd ..; git clone -q --reference c --dissociate $URL d; git -C d log --format=%H",
        SAME,
    ),
    ("init and fetch", "git init -q c; cd c; git remote add -f origin $URL 2> e; git for-each-ref", SAME),
    (
        "fetch of all and prune",
        "@git -C ../../up.git branch -q -D topic; git fetch -q --all --prune; git branch -a",
        SAME,
    ),
    ("fetch of a refspec", "@git fetch -q origin 'refs/heads/t*:refs/x/*'; git for-each-ref", SAME),
    ("fetch of a tag", "git clone -q --no-tags $URL c; cd c; git fetch -q origin tag v1; git tag", SAME),
    ("fetch of a pull request", "@git fetch -q origin pull/7/head:pr; git rev-parse pr", SAME),
    (
        "fetch of all pull requests",
        "@git fetch -q origin '+refs/pull/*/head:refs/pr/*'; git for-each-ref",
        SAME,
    ),
    (
        "fetch of a commit",
        "@git fetch -q origin $(git rev-parse origin/topic); cut -f1 .git/FETCH_HEAD",
        SAME,
    ),
    (
        "fetch of a commit that no ref reaches",
        "@id=$(git -C ../../up.git commit-tree -m lost 'main^{tree}'); git fetch -q origin $id; cut -f1 .git/FETCH_HEAD",
        SAME,
    ),
    ("fetch of a missing commit", "@git fetch -q origin $(printf %040d 1)", SAME),
    ("fetch without changes", "@git fetch --dry-run; git fetch; git for-each-ref", SAME),
    ("list of refs", "git ls-remote $URL", SAME),
    (
        "list of branches",
        "git ls-remote --heads $URL; git ls-remote --tags $URL; git ls-remote $URL 'to*'",
        SAME,
    ),
    ("list without a match", "git ls-remote --exit-code $URL missing", SAME),
    ("list of symbolic refs", "git ls-remote --symref $URL", SAME),
    ("remote show", "@git remote show origin | grep -v URL", SAME),
    (
        "remote set-head",
        "@git remote set-head origin -d; git remote set-head origin -a; git symbolic-ref refs/remotes/origin/HEAD",
        SAME,
    ),
    ("pull --rebase", "@$OTHER; $COMMIT; git pull -q --rebase; git push -q; git log --format=%s", SAME),
    ("pull --ff-only of a diverged branch", "@$OTHER; $COMMIT; git pull -q --ff-only", SAME),
    (
        "pull with a merge",
        "@$OTHER; $COMMIT; git pull -q --no-rebase --no-edit; git push -q; git log --format=%s",
        Some("the merge commit names the gate"),
    ),
    ("remote update", "@$OTHER; git remote update > /dev/null 2>&1; git rev-parse origin/main", SAME),
    ("gc and fetch", "@git gc -q; $OTHER; git fetch -q; git rev-parse origin/main", SAME),
    ("archive of a remote", "git archive --remote=$URL main | tar t", Some("smart HTTP has no archives")),
];

const PUSHES: &[Workflow] = &[
    ("push of a branch", "@$NEW; git push -q origin new", SAME),
    ("push -u", "@$NEW; git push -q -u origin new; $COMMIT; git push -q; git status -sb", SAME),
    ("push of HEAD", "@$NEW; git push -q origin HEAD", SAME),
    ("push to the default branch", "@$COMMIT; git push -q origin main", SAME),
    ("push of a commit", "@$COMMIT; git push -q origin $(git rev-parse HEAD):refs/heads/sha", SAME),
    ("push without changes", "@git push -q origin main", SAME),
    ("push --dry-run", "@$NEW; git push -q --dry-run origin new", SAME),
    ("push --porcelain", "@$NEW; git push --porcelain origin new | grep -v ^To", SAME),
    ("push of an amended commit", "@git commit -q --amend -m again; git push -q", SAME),
    ("push --force-with-lease", "@git commit -q --amend -m again; git push -q --force-with-lease", SAME),
    (
        "stale push --force-with-lease",
        "@$OTHER; git commit -q --amend -m again; git push -q --force-with-lease",
        SAME,
    ),
    (
        "push --force-if-includes",
        "@git commit -q --amend -m a; git push -q --force-with-lease --force-if-includes",
        SAME,
    ),
    ("push --force", "@git reset -q --hard HEAD^; git push -q --force", SAME),
    ("push of a plus refspec", "@git reset -q --hard HEAD^; git push -q origin +main", SAME),
    (
        "push after another client",
        "@$OTHER; $COMMIT; git push -q || { git pull -q --rebase; git push -q; }",
        SAME,
    ),
    ("push --delete", "@git push -q origin --delete topic; git branch -a", SAME),
    ("push of an empty source", "@git push -q origin :topic", SAME),
    ("push --delete of a missing branch", "@git push -q origin --delete missing", SAME),
    (
        "rename of a branch",
        "@git checkout -q topic; git branch -m renamed; git push -q origin renamed :topic",
        SAME,
    ),
    ("push --all", "@git checkout -q topic; $COMMIT; $NEW; git push -q --all", SAME),
    ("push --tags", "@git tag a; git tag b; git push -q --tags", SAME),
    (
        "push of 300 tags",
        "@for n in $(seq 300); do echo create refs/tags/t$n HEAD; done | git update-ref --stdin; git push -q --tags",
        Some("a push has at most 256 refs"),
    ),
    ("push --follow-tags", "@$COMMIT; git tag -a -m t t; git push -q --follow-tags", SAME),
    (
        "push --mirror",
        "git clone -q --mirror $URL c; cd c; git branch more main; git branch -q -D topic; git push -q --mirror",
        SAME,
    ),
    ("push --prune", "@git push -q --prune origin 'refs/heads/*:refs/heads/*'", SAME),
    ("push of several refs", "@$NEW; git push -q origin new HEAD:other HEAD:refs/tags/t", SAME),
    ("push --atomic", "@$NEW; git push -q --atomic origin new HEAD:other", SAME),
    (
        "push --atomic with a stale branch",
        "@$OTHER; $COMMIT; git push -q --atomic origin main HEAD:other",
        SAME,
    ),
    ("push with a stale branch", "@$OTHER; $COMMIT; git push -q origin main HEAD:other", SAME),
    ("push options", "@$NEW; git push -q -o ci.skip -o a=b origin new; cat ../../options", SAME),
    (
        "push from a detached HEAD",
        "@git checkout -q --detach; $COMMIT; git push -q origin HEAD:refs/heads/detached",
        SAME,
    ),
    (
        "push that a local hook refuses",
        "@printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-push; chmod +x .git/hooks/pre-push; $NEW; git push -q origin new",
        SAME,
    ),
    (
        "push --no-verify",
        "@printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-push; chmod +x .git/hooks/pre-push; $NEW; git push -q --no-verify origin new",
        SAME,
    ),
    ("push that the upstream refuses", "@$NEW; git push -q origin new:denied", SAME),
    (
        "push --porcelain that the upstream refuses",
        "@$NEW; git push --porcelain origin new:denied | grep -v ^To",
        SAME,
    ),
    (
        "push that the upstream refuses as no fast-forward",
        "@git -C ../../up.git config receive.denyNonFastForwards true; git reset -q --hard HEAD^; git push --porcelain --force | grep -v ^To",
        SAME,
    ),
    (
        "push with a refused ref",
        "@$NEW; git push -q origin new new:denied",
        Some("the upstream updates all refs or none"),
    ),
    (
        "push of another kind of ref",
        "@git push -q origin HEAD:refs/custom/x; $COMMIT; git push -q origin HEAD:refs/custom/x",
        SAME,
    ),
    (
        "push of an orphan branch",
        "@git checkout -q --orphan lone; git commit -qm lone; git push -q origin lone",
        SAME,
    ),
    (
        "push of a large file",
        "@head -c 3000000 /dev/zero > big; git add .; git commit -qm big; git push -q",
        SAME,
    ),
    ("push from a shallow clone", "git clone -q --depth 1 $URL c; cd c; $COMMIT; git push -q", SAME),
    ("push from a partial clone", "git clone -q --filter=blob:none $URL c; cd c; $COMMIT; git push -q", SAME),
    ("push without an upstream branch", "@$NEW; git push -q", SAME),
    ("push with autoSetupRemote", "@$NEW; git -c push.autoSetupRemote=true push -q; git status -sb", SAME),
    (
        "push to another remote",
        "@git remote rename origin up; git remote add fork $URL; $NEW; git push -q fork new",
        SAME,
    ),
    ("push with a pushurl", "@git remote set-url --push origin $URL; $NEW; git push -q origin new", SAME),
    ("push --signed", "@$NEW; git push -q --signed=yes origin new", Some("git over HTTP exits with 1")),
    ("push --signed=if-asked", "@$NEW; git push -q --signed=if-asked origin new", SAME),
    (
        "push to a name of another case",
        "@$NEW; git push -q origin new:Topic",
        Some("names that look alike are refused"),
    ),
    (
        "push of a replacement",
        "@$NEW; git replace HEAD HEAD^; git push -q origin 'refs/replace/*'",
        Some("refs/replace is refused"),
    ),
    (
        "push of a Git LFS pointer",
        "@printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%064d\\nsize 1\\n' 0 > f; git add .; git commit -qm lfs; git push -q",
        Some("Git LFS is refused"),
    ),
];

const HISTORY: &[Workflow] = &[
    ("merge", "@$NEW; git checkout -q main; git merge -q --no-ff -m merged new; git push -q", SAME),
    (
        "squash merge",
        "@$NEW; git checkout -q main; git merge -q --squash new > /dev/null; git commit -qm squashed; git push -q",
        SAME,
    ),
    (
        "merge of several branches",
        "@$NEW; git checkout -q -b two origin/main; $COMMIT; git checkout -q main; git merge -q -m octopus new two topic > /dev/null; git push -q",
        SAME,
    ),
    ("rebase", "@git checkout -q topic; git rebase -q origin/main; git push -q --force-with-lease", SAME),
    (
        "interactive rebase",
        "@$COMMIT; $COMMIT; GIT_SEQUENCE_EDITOR='sed -i 2s/pick/fixup/' git rebase -q -i origin/main; git push -q",
        SAME,
    ),
    ("cherry-pick", "@git cherry-pick origin/topic > /dev/null; git push -q", SAME),
    ("revert", "@git revert --no-edit HEAD > /dev/null; git push -q", SAME),
    (
        "stash",
        "@echo more >> one; git stash -q; $NEW; git stash pop -q; git commit -qam stashed; git push -q origin new",
        SAME,
    ),
    (
        "push of a stash",
        "@echo more >> one; git stash -q; git push -q origin 'stash@{0}:refs/heads/wip'",
        SAME,
    ),
    (
        "patches",
        "@$COMMIT; git format-patch -q -1; git reset -q --hard HEAD^; git am -q 0*.patch; git push -q",
        SAME,
    ),
    ("lightweight tag", "@git tag light; git push -q origin light", SAME),
    ("annotated tag", "@git tag -a -m words noted; git push -q origin noted", SAME),
    ("tag of a tag", "@git tag -a -m words outer v1; git push -q origin outer", SAME),
    ("tag of a file", "@git tag blob HEAD:one; git push -q origin blob", SAME),
    ("moved tag", "@git tag -f v1 > /dev/null; git push -q origin v1 || git push -qf origin v1", SAME),
    ("deleted tag", "@git push -q origin --delete v1; git fetch -q --prune --prune-tags; git tag", SAME),
    (
        "notes",
        "@git notes add -m note; git push -q origin refs/notes/commits; git fetch -q origin 'refs/notes/*:refs/notes/got/*'; git for-each-ref",
        SAME,
    ),
    (
        "submodule",
        "@git submodule --quiet add -b topic $URL sub; git commit -qm sub; git push -q; cd ..; git clone -q --recurse-submodules $URL d; ls d/sub",
        SAME,
    ),
    (
        "push of a submodule",
        "@git submodule --quiet add -b topic $URL sub; git commit -qm sub; cd sub; git checkout -q -b in; $COMMIT; cd ..; git commit -qam moved; git push -q --recurse-submodules=on-demand origin main",
        SAME,
    ),
    (
        "worktree",
        "@git worktree add -q ../w -b tree origin/topic; cd ../w; $COMMIT; git push -q origin tree",
        SAME,
    ),
    (
        "switch and restore",
        "@git switch -q -c s; echo x > one; git restore one; $COMMIT; git push -q -u origin s; git switch -q main",
        SAME,
    ),
    ("rename of a file", "@git mv one two; git commit -qm moved; git push -q", SAME),
    ("mode and symlink", "@ln -s one link; chmod +x one; git add .; git commit -qm modes; git push -q", SAME),
    (
        "line endings",
        "@echo '* text=auto eol=crlf' > .gitattributes; printf 'a\\r\\nb\\r\\n' > crlf; git add . 2> /dev/null; git commit -qm eol; git push -q",
        SAME,
    ),
    (
        "names in unicode",
        "@git checkout -q -b größe; echo x > 'naïve ☃'; git add .; git commit -qm ☃; git push -q origin größe",
        SAME,
    ),
    ("empty commit", "@git commit -q --allow-empty -m empty; git push -q", SAME),
    ("repack and push", "@$COMMIT; git repack -q -a -d; git push -q", SAME),
    (
        "bundle",
        "@$COMMIT; git bundle create -q ../b main; cd ..; git clone -q -b main b d; git -C d push -q $URL main:bundled",
        SAME,
    ),
    (
        "grafted history",
        "@git checkout -q --orphan o; git commit -qm o; git replace --graft origin/main o; git push -q origin o",
        SAME,
    ),
    (
        "reset and reflog",
        "@$COMMIT; git reset -q --hard HEAD^; git reset -q --hard 'HEAD@{1}'; git push -q",
        SAME,
    ),
];

/// The observed result of one run of a workflow.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    code: Option<i32>,
    stdout: String,
    upstream: String,
}

fn run(scene: &Scene, home: &str, script: &str) -> Result<(Shown, String)> {
    scene.shell("rm -rf up.git work options; cp -r template.git up.git; mkdir work")?;
    let script = script.strip_prefix('@').map_or(script.to_owned(), |rest| format!("{CLONE}{rest}"));
    let script = script
        .replace("$COMMIT", "{ n=$((n + 1)); echo $n >> mine; git add .; git commit -qm mine$n; }")
        .replace("$NEW", "git checkout -q -b new; echo new > new; git add .; git commit -qm new")
        .replace("$OTHER", "git -C ../../seed push -q ../up.git more:main");
    let ssh = "ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR";
    let mut command = Command::new("sh");
    command.args(["-ec", &format!("n=0; {script}")]).current_dir(scene.at("work")).env_clear();
    command.env("PATH", std::env::var("PATH")?).env("HOME", scene.at(home)).env("LC_ALL", "C.UTF-8");
    command.env("URL", scene.repo(|_| ())?.url);
    command.env("GIT_SSH_COMMAND", format!("{ssh} -i {}", scene.at("client").display()));
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "A").env(format!("GIT_{who}_EMAIL"), "a@example.com");
        command.env(format!("GIT_{who}_DATE"), "2026-01-02T03:04:05Z");
    }
    let output = command.output()?;
    let upstream = scene.shell("git -C up.git for-each-ref; git -C up.git symbolic-ref HEAD")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((Shown { code: output.status.code(), stdout, upstream }, stderr))
}

/// Creates the upstream that is copied for every run.
fn make_template(scene: &Scene) -> Result<()> {
    hook(scene, "update", "case $1 in */denied) echo denied >&2; exit 1 ;; esac")?;
    hook(scene, "post-receive", "env | grep ^GIT_PUSH_OPTION_ | sort > ../options || true")?;
    scene.shell(
        "cd seed; mkdir dir; echo two > dir/two; git add .; git commit -qm two; git tag -a -m v v1; \
         echo three > three; git add .; git commit -qm three; git push -q ../up.git main v1; \
         git checkout -q -b topic HEAD^; echo t > t; git add .; git commit -qm topic; git push -q ../up.git topic; \
         git checkout -q -b pull; git commit -q --allow-empty -m pull; git push -q ../up.git pull:refs/pull/7/head; \
         git checkout -q -b more main; echo o > o; git add .; git commit -qm other; cd ..; \
         git -C up.git config receive.advertisePushOptions true; git -C up.git config uploadpack.allowFilter true; \
         git -C up.git config uploadpack.allowAnySHA1InWant true; mv up.git template.git; cp -r template.git up.git",
    )?;
    Ok(())
}

fn write_home(directory: &Path, redirect: &str) -> Result<()> {
    fs::create_dir_all(directory)?;
    let settings = "[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n";
    Ok(fs::write(directory.join(".gitconfig"), format!("{settings}{redirect}"))?)
}

async fn compare(workflows: &[Workflow]) -> Result<()> {
    let mut scene = Scene::with("AcceptEnv GIT_PROTOCOL\n")?;
    make_template(&scene)?;
    let all = vec!["refs/**".to_owned()];
    scene
        .open(|repo| {
            repo.refs =
                GateRefs { allow: Some(all), force: true, delete: true, tags: true, ..GateRefs::default() };
        })
        .await?;
    let gate = format!("http://{}:9420/tool.git", scene.address);
    let url = scene.repo(|_| ())?.url;
    write_home(&scene.at("plain"), "")?;
    write_home(&scene.at("gated"), &format!("[url \"{gate}\"]\n\tinsteadOf = {url}\n"))?;
    let mut wrong = Vec::new();
    for (name, script, differs) in workflows {
        let ((plain, plain_stderr), (gated, stderr)) =
            (run(&scene, "plain", script)?, run(&scene, "gated", script)?);
        if (plain == gated) == differs.is_some() {
            wrong.push(format!("{name}: {plain:?}\n{plain_stderr}\nthrough the gate: {gated:?}\n{stderr}"));
        }
    }
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), workflows.len(), wrong.join("\n"));
    Ok(())
}

pub(crate) async fn fetches() -> Result<()> {
    compare(FETCHES).await
}

pub(crate) async fn pushes() -> Result<()> {
    compare(PUSHES).await
}

pub(crate) async fn history() -> Result<()> {
    compare(HISTORY).await
}

/// The docs must state the correct number of workflows, and must name the workflows with a different result.
pub(crate) async fn counts() -> Result<()> {
    let all: Vec<&Workflow> = FETCHES.iter().chain(PUSHES).chain(HISTORY).collect();
    let differ = all.iter().filter(|(.., differs)| differs.is_some()).count();
    let docs = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manifests.md"))?;
    let sentence = format!("{} of {} workflows", all.len() - differ, all.len());
    ensure!(docs.contains(&sentence), "docs/manifests.md does not say {sentence:?}");
    Ok(())
}
