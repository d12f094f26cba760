//! Tests different upstreams: with different features of `receive-pack`, with refs that are not branches, tags or
//! notes, with shallow histories, and with many refs.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_protocol::session::git_gate::GateKey;

use crate::scene::{SECRET, Scene, ZERO, hook, many_commits};

/// Configures the upstream to treat `refs/for/*` as Gerrit does: a push to such a ref creates a change instead of the
/// ref.
pub(crate) fn act_as_gerrit(scene: &Scene) -> Result<()> {
    scene.shell("git -C up.git config receive.procReceiveRefs refs/for")?;
    fs::write(scene.at("gerrit.py"), GERRIT)?;
    hook(scene, "proc-receive", "exec python3 ../gerrit.py").map(drop)
}

/// A proc-receive hook (githooks(5)) that stores each pushed commit as `refs/changes/N`.
const GERRIT: &str = r#"
import os, subprocess, sys
read, write = sys.stdin.buffer, sys.stdout.buffer
def packets():
    while (size := int(read.read(4), 16)):
        yield read.read(size - 4).rstrip(b"\n")
def send(*lines):
    for line in lines: write.write(b"%04x" % (len(line) + 4) + line)
    write.write(b"0000"); write.flush()
list(packets()); send(b"version=1")
results = []
for command in packets():
    old, new, name = command.split(b" ", 2)
    number = len(subprocess.check_output(["git", "for-each-ref", "refs/changes/"]).splitlines()) + 1
    subprocess.check_call(["git", "update-ref", "refs/changes/%d" % number, new.decode()])
    print("new change", number, "from", old.decode()[:7], file=sys.stderr)
    results.append(b"ok " + name)
send(*results)
"#;

pub(crate) async fn gerrit() -> Result<()> {
    let mut scene = Scene::new()?;
    act_as_gerrit(&scene)?;
    scene.open(|repo| repo.refs.allow = Some(vec!["refs/for/*".into()])).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m one")?;
    // The second push amends the commit of the first push.
    for (number, change) in [(1, ""), (2, "git commit -q --amend --allow-empty -m two;")] {
        let output = scene.shell(&format!("cd clone; {change} git push origin HEAD:refs/for/main"))?;
        ensure!(output.contains(&format!("new change {number} from 0000000")), "{output}");
        let stored = scene
            .shell(&format!("git -C up.git rev-parse refs/changes/{number}; git -C clone rev-parse HEAD"))?;
        ensure!(stored.lines().collect::<std::collections::HashSet<_>>().len() == 1, "{stored}");
    }
    // A push of the same commit is not a no-op, because the upstream does not have the ref `refs/for/main`.
    let output = scene.shell("cd clone; git push origin HEAD:refs/for/main")?;
    ensure!(output.contains("new change 3"), "{output}");
    let refs =
        scene.shell("git -C up.git for-each-ref refs/for; git -C gate/tool.git for-each-ref refs/for")?;
    ensure!(refs.is_empty(), "{refs}");
    for name in ["refs/for/main%submit", "refs/for/main%topic=x,submit"] {
        scene.refused(&format!("cd clone; git push origin HEAD:{name}"), &["would merge the push"])?;
    }
    Ok(())
}

/// If another client changes or deletes a ref in the upstream, the mirror does not keep the old ref.
pub(crate) async fn follows() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|repo| repo.refs.allow = Some(vec!["refs/**".into()])).await?;
    let push = "git push origin HEAD:refs/custom/x HEAD:refs/heads/x";
    scene
        .shell(&format!("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m one; {push}"))?;
    let output = scene.shell(&format!("cd clone; {push}"))?;
    ensure!(output.contains("Everything up-to-date"), "{output}");
    scene.shell("for ref in custom heads; do git -C up.git update-ref -d refs/$ref/x; done")?;
    let output = scene.shell(&format!("cd clone; {push}"))?;
    ensure!(!output.contains("Everything up-to-date"), "{output}");
    scene.shell("for ref in custom heads; do git -C up.git rev-parse --verify refs/$ref/x; done")?;
    scene.shell("cd clone; git commit -q --allow-empty -m two; git push -q origin HEAD:refs/custom/x")?;
    Ok(())
}

/// Tests an upstream that cannot update several refs atomically. Some hosts have this limitation.
pub(crate) async fn not_atomic() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.shell("git -C up.git config receive.advertiseAtomic false")?;
    scene.open(|repo| repo.refs.delete = true).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; git push -q origin HEAD:one",
    )?;
    scene.shell("cd clone; git push -q origin HEAD:two HEAD:three; git push -q origin :two :three")?;
    hook(&scene, "update", "test $1 != refs/heads/bad || { echo no bad branches >&2; exit 1; }")?;
    // The client reports the upstream's result for each ref.
    let output = scene.output("cd clone; git push --porcelain origin HEAD:good HEAD:bad")?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(!output.status.success(), "{text}");
    for part in [
        "*\tHEAD:refs/heads/good\t[new branch]",
        "!\tHEAD:refs/heads/bad\t[remote rejected] (hook declined)",
        "no bad branches",
        "the upstream of tool accepted 1 of 2 refs",
    ] {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    let refs = scene.shell("git -C up.git for-each-ref --format='%(refname)'")?;
    ensure!(refs == "refs/heads/good\nrefs/heads/main\nrefs/heads/one\n", "{refs}");
    scene.refused(
        "cd clone; git push origin HEAD:bad",
        &["the upstream of tool refused the push", "hook declined"],
    )?;
    // The client detects that the upstream does not support atomic pushes, as it would without the gate.
    scene
        .refused("cd clone; git push --atomic origin HEAD:b1 HEAD:b2", &["does not support --atomic push"])?;
    Ok(())
}

pub(crate) async fn options() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    // If the upstream does not support push options, the client refuses to push.
    let push = "cd clone; git push -o ci.skip -o 'topic=a b' origin HEAD";
    scene.refused(&format!("{push}:x"), &["the receiving end does not support push options"])?;
    scene.shell("git -C up.git config receive.advertisePushOptions true")?;
    scene.open(|_| ()).await?;
    hook(&scene, "post-receive", "env | grep ^GIT_PUSH_OPTION | sort > ../options")?;
    scene.shell(&format!("{push}:x"))?;
    let received = fs::read_to_string(scene.at("options"))?;
    let expected = "GIT_PUSH_OPTION_0=ci.skip\nGIT_PUSH_OPTION_1=topic=a b\nGIT_PUSH_OPTION_COUNT=2\n";
    ensure!(received == expected, "{received}");
    for (option, words) in [
        ("topic=$SECRET", "looks like it contains a secret"),
        ("ci.variable=K=$T", "looks like it contains a secret"),
        ("merge_request.merge_when_pipeline_succeeds", "would merge the push into another branch"),
        ("repo.private=false", "would change the settings of the repository"),
        ("\"$(printf 'caf\\351')\"", "a push option is not UTF-8"),
    ] {
        scene.refused(&format!("cd clone; git push -o {option} origin HEAD:y"), &[words])?;
    }
    let many: String = (0..33).map(|number| format!("-o o{number} ")).collect();
    scene.refused(&format!("cd clone; git push {many} origin HEAD:y"), &["at most 32 push options"])?;
    // The gate would parse the second line of a push option as another line of the hook's request, so the hook refuses
    // it.
    let new = scene.shell(
        "cd clone; git commit -q --allow-empty -m z; git rev-parse HEAD | git pack-objects -q --stdout > ../pack; \
         git rev-parse HEAD",
    )?;
    let command = format!("{ZERO} {} refs/heads/y\0report-status push-options", new.trim());
    let begin = format!("{:04x}{command}0000000aa\nend\n0000", command.len() + 4);
    let body = [begin.into_bytes(), fs::read(scene.at("pack"))?].concat();
    scene.refused_raw(&body, "pre-receive hook declined")?;
    ensure!(!fs::read_to_string(scene.at("options"))?.contains(SECRET));
    Ok(())
}

/// Refs that are not branches, tags or notes can be listed and fetched.
pub(crate) async fn pull_requests() -> Result<()> {
    for lines in ["", "AcceptEnv GIT_PROTOCOL\n"] {
        let mut scene = Scene::with(lines)?;
        scene.shell(
            "cd seed; for n in 1 2 3; do git commit -q --allow-empty -m pull$n; \
             git push -q ../up.git HEAD:refs/pull/$n/head HEAD:refs/merge-requests/$n/head; done; \
             git tag -a -m v v1; git push -q ../up.git v1:refs/custom/tag",
        )?;
        scene.open(|_| ()).await?;
        scene.shell(
            "git clone -q $GATE clone; cd clone; test -z \"$(git log --all --grep=pull --format=%s)\"; \
             git -C ../gate/tool.git rev-list --all --count | grep -qx 1; \
             git fetch -q origin refs/pull/2/head; test $(git log -1 --format=%s FETCH_HEAD) = pull2; \
             git fetch -q origin pull/1/head:pr1; test $(git log -1 --format=%s pr1) = pull1; \
             git fetch -q origin '+refs/merge-requests/*/head:refs/remotes/origin/mr/*'; \
             test $(git log -1 --format=%s origin/mr/3) = pull3; \
             git ls-remote origin > ../listed; git ls-remote ../up.git > ../wanted; cmp ../listed ../wanted; \
             git ls-remote --symref origin HEAD | grep -q ^ref:.refs/heads/main; \
             git clone -q --mirror $GATE ../mirror.git; git -C ../mirror.git for-each-ref > ../listed; \
             git -C ../up.git for-each-ref > ../wanted; cmp ../listed ../wanted; git -C ../mirror.git fsck",
        )?;
        // A new state of a pull request replaces the old one.
        scene.shell(
            "cd seed; git commit -q --amend --allow-empty -m again; git push -qf ../up.git HEAD:refs/pull/2/head; \
             cd ../clone; git fetch -q origin refs/pull/2/head; test $(git log -1 --format=%s FETCH_HEAD) = again",
        )?;
        scene.refused(
            "cd clone; git commit -q --allow-empty -m x; git push origin HEAD:refs/pull/1/head",
            &["not a branch"],
        )?;
    }
    Ok(())
}

pub(crate) async fn shallow() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.shell(
        "cd seed; for n in 1 2 3 4; do git commit -q --allow-empty -m $n; done; git push -q ../up.git main; cd ..; \
         mv up.git whole.git; git clone -q --bare --depth 2 file://$PWD/whole.git up.git",
    )?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; test $(git rev-list --count HEAD) = 2; git fsck --no-progress; \
         git checkout -q -b topic; git commit -q --allow-empty -m mine; git push -q origin topic; \
         test $(git -C ../up.git rev-parse topic) = $(git rev-parse HEAD); git -C ../up.git fsck --no-progress",
    )?;
    // The upstream is deepened and then unshallowed. The refs of the upstream do not change.
    for (more, count) in [("--deepen=1", 3), ("--unshallow", 5)] {
        scene.shell(&format!(
            "git -C up.git fetch -q {more} file://$PWD/whole.git main; rm -rf again; git clone -q $GATE again; cd again; \
             test $(git rev-list --count HEAD) = {count}; git fsck --no-progress; git checkout -q -b x{count}; \
             git commit -q --allow-empty -m x; git push -q origin HEAD",
        ))?;
    }
    ensure!(!scene.at("gate/tool.git/shallow").exists(), "the mirror is shallow");
    scene.shell(
        "cd clone; git commit -q --allow-empty -m more; git push -q origin topic; git fetch -q --unshallow; \
         test $(git rev-list --count origin/main) = 5; git fsck --no-progress; git -C ../gate/tool.git fsck --no-progress",
    )?;
    Ok(())
}

/// A ref with a name that is not UTF-8 can be fetched, but not pushed.
pub(crate) async fn not_utf8() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.shell("cd seed; git commit -q --allow-empty -m odd; git push -q ../up.git \"HEAD:refs/heads/$(printf 'caf\\351')\"")?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; test $(git log -1 --format=%s \"origin/$(printf 'caf\\351')\") = odd",
    )?;
    let refused = scene.refused(
        "cd clone; git commit -q --allow-empty -m x; git push origin \"HEAD:refs/heads/$(printf 'th\\351')\"",
        &["the name of the ref \"refs/heads/th\u{fffd}\" is not UTF-8; rename it (`git branch -m OLD NEW`)"],
    )?;
    ensure!(!refused.contains("exited"), "{refused}");
    scene.shell("cd clone; git push -q origin HEAD:fine")?;
    Ok(())
}

/// Tests the first clone of an upstream with 40,000 branches, and a fetch and a push after the clone.
pub(crate) async fn many_refs() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.shell(
        "cd up.git; for n in $(seq 40000); do echo create refs/heads/team/b$n main; done | git update-ref --stdin; \
         git pack-refs --all",
    )?;
    scene.open(|_| ()).await?;
    let began = Instant::now();
    scene.shell("git ls-remote $GATE > listed; test $(wc -l < listed) = 40002")?;
    let first = began.elapsed();
    scene.shell("git clone -q --bare $GATE clone; git -C clone rev-parse -q --verify team/b40000")?;
    // The time that the client itself needs depends on the disk. The gate needs far less time than this limit.
    ensure!(first < Duration::from_secs(15), "{first:?}");
    scene.shell(
        "git clone -q --single-branch $GATE one; cd one; git commit -q --allow-empty -m x; git push -q origin HEAD:new; \
         git -C ../up.git rev-parse -q --verify new",
    )?;
    ensure!(fs::read_dir(scene.at("gate/tool.git/refs"))?.next().is_none(), "the mirror has loose refs");
    Ok(())
}

/// If the gate has to fetch more than 4000 commits at once, it fetches refs by patterns. After that, the mirror also
/// contains the objects of a branch that changes later, of a tag, and of a ref that is mirrored only because of
/// `refs.allow`.
pub(crate) async fn patterns() -> Result<()> {
    for depth in ["", "--depth 1"] {
        let mut scene = Scene::new()?;
        scene.shell(&many_commits(4100))?;
        scene.shell(&format!(
            "cd seed; for ref in tags/v1 custom/x; do git commit -q --allow-empty -m $ref; \
             git push -q ../up.git HEAD:refs/$ref; git reset -q --hard HEAD^; done; cd ..; mv up.git whole.git; \
             git clone -q --mirror --no-single-branch {depth} file://$PWD/whole.git up.git"
        ))?;
        scene.open(|repo| repo.refs.allow = Some(vec!["refs/custom/*".into()])).await?;
        let same = "git ls-remote -q $GATE > listed; git -C up.git for-each-ref > wanted; \
             git -C gate/tool.git for-each-ref > mirrored; cmp mirrored wanted; test $(wc -l < wanted) = 4103; \
             git -C gate/tool.git rev-list --objects --all --quiet";
        scene.shell(same)?;
        scene.shell(&format!("git -C up.git update-ref refs/heads/team/b7 refs/heads/team/b8; {same}"))?;
        scene.shell(
            "git clone -q --mirror $GATE clone; git -C clone for-each-ref > cloned; cmp cloned wanted; \
             git -C clone fsck --no-progress; test $(git -C clone rev-list --count team/b9) = $(git -C up.git rev-list --count team/b9)",
        )?;
        if !depth.is_empty() {
            scene.shell("git -C up.git fetch -q --unshallow file://$PWD/whole.git 'refs/*:refs/whole/*'; git -C up.git \
                 for-each-ref --format='delete %(refname)' refs/whole | git -C up.git update-ref --stdin; git ls-remote -q $GATE > listed; \
                 test $(git -C gate/tool.git rev-list --count team/b9) = 2")?;
        }
        ensure!(fs::read_dir(scene.at("gate/tool.git/refs"))?.next().is_none(), "the mirror has loose refs");
    }
    Ok(())
}

/// If an https upstream has moved, the error names the new address.
pub(crate) async fn moved() -> Result<()> {
    let mut scene = Scene::new()?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    fs::write(scene.at("https.pem"), made.cert.pem())?;
    fs::write(scene.at("https.key"), made.signing_key.serialize_pem())?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    fs::File::create(scene.at("moved.py"))?.write_all(MOVED.as_bytes())?;
    let mut server = std::process::Command::new("python3");
    server.args(["moved.py", &port.to_string()]).current_dir(scene.directory.path());
    let _server = bottle_test_support::killed_on_drop::KilledOnDrop(server.spawn()?);
    crate::scene::until(|| crate::scene::connect((std::net::Ipv4Addr::LOCALHOST, port)).is_ok())?;
    scene.roots = made.cert.pem();
    let url = format!("https://127.0.0.1:{port}/team/old.git");
    scene
        .open(|repo| {
            repo.url.clone_from(&url);
            repo.key = GateKey::Token { token: "t0ken-of-the-upstream".into() };
        })
        .await?;
    let words = ["it has moved to \"https://forge.example/team/new.git\"", "the user can change `url`"];
    scene.refused("git clone $GATE clone", &words)?;
    Ok(())
}

const MOVED: &str = r#"
import http.server, ssl, sys
class Moved(http.server.BaseHTTPRequestHandler):
    def log_message(self, *said): pass
    def do_GET(self):
        self.send_response(301)
        self.send_header("Location", "https://forge.example" + self.path.replace("old", "new"))
        self.send_header("Content-Length", "0"); self.end_headers()
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Moved)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain("https.pem", "https.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;
