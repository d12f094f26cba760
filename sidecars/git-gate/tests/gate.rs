//! The gate as a real process, between a real git and a real OpenSSH server.
//!
//! This program plays the daemon itself: started as `__git-gate` it is that, else it runs the tests. Without an
//! OpenSSH server on the machine they are skipped, aloud.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_channel::{Channel, Side};
use bottle_contract::queue::{Answer, Question, Response, Status, Tool};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, RuleFile};
use bottle_contract::session::gate::{GateKey, GateProvision, GateRefs, GateRepo};
use bottle_contract::session::guest::SecretText;
use bottle_contract::session::{Hello, Role};
use bottle_daemon::Door;
use bottle_git_gate::GateConfig;
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use tokio::net::UnixStream;

const SSHD: &str = "/usr/sbin/sshd";

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of the shape of a key, and nobody's.
const TOKEN: &str = "AKIAQWERTYUIOPASDFG2";

/// A secret of the bottle's.
const SECRET: &str = "correct-horse-battery-staple";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("__git-gate") {
        return bottle_git_gate::run();
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    vec![
        trial("what_is_pushed_is_upstream_and_what_is_upstream_is_fetched", whole_way),
        trial("nothing_that_may_not_leave_leaves", attacks),
        trial("hidden_objects_are_refused", hidden),
        trial("a_person_decides_once_and_the_retry_passes", asked),
        trial("upstreams_own_refusal_reaches_the_agent_and_leaves_nothing", refused_upstream),
        trial("what_is_wrong_upstream_is_a_sentence", wrong),
        trial("several_refs_are_all_or_none", all_or_none),
        trial("no_key_is_on_disk_or_on_a_command_line", nowhere),
    ]
}

fn trial<F: Future<Output = Result<()>> + 'static>(name: &str, test: fn() -> F) -> Trial {
    let there = Path::new(SSHD).exists();
    let trial = Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let outcome = runtime.block_on(async { tokio::time::timeout(5 * PATIENCE, test()).await });
        outcome.context("the test took too long").and_then(|done| done).map_err(|e| format!("{e:?}").into())
    });
    trial.with_ignored_flag(!there).with_kind(if there { "" } else { "needs an OpenSSH server" })
}

/// A process that ends with its value.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An upstream behind OpenSSH, a gate, and a clone.
struct Scene {
    folder: TempDir,
    port: u16,
    address: Ipv4Addr,
    channel: Option<Channel>,
    _sshd: Ends,
    gate: Option<Ends>,
}

static NUMBER: AtomicU8 = AtomicU8::new(2);

impl Scene {
    /// With an upstream that has one commit.
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        for key in ["host", "client", "other"] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(key)))?;
        }
        fs::copy(at("client.pub"), at("authorized"))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPasswordAuthentication no\n\
             StrictModes no\nUsePAM no\nPidFile none\n",
            at("host").display(),
            at("authorized").display()
        );
        fs::write(at("sshd"), config)?;
        // Where it separates its privileges, when root starts it.
        let _ = fs::create_dir_all("/run/sshd");
        let sshd = Command::new(SSHD).arg("-D").arg("-f").arg(at("sshd")).stderr(Stdio::null()).spawn()?;
        let sshd = Ends(sshd);
        let address = Ipv4Addr::new(127, 77, NUMBER.fetch_add(1, Ordering::Relaxed), (port % 250) as u8 + 1);
        let scene = Self { folder, port, address, channel: None, _sshd: sshd, gate: None };
        scene.shell(
            "git init -q --bare -b main up.git && git init -q -b main seed && cd seed && echo one > one \
             && git add . && git commit -qm one && git push -q ../up.git main",
        )?;
        until(|| connect((Ipv4Addr::LOCALHOST, port)).is_ok())?;
        Ok(scene)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn repo(&self, change: impl FnOnce(&mut GateRepo)) -> Result<GateRepo> {
        let user = Command::new("id").arg("-un").output()?.stdout;
        let user = String::from_utf8(user)?;
        let host = fs::read_to_string(self.at("host.pub"))?;
        let mut repo = GateRepo {
            name: "tool".parse()?,
            url: format!("ssh://{}@127.0.0.1:{}{}", user.trim(), self.port, self.at("up.git").display()),
            key: GateKey::Ssh {
                private: fs::read_to_string(self.at("client"))?.as_str().into(),
                known_hosts: format!("[127.0.0.1]:{} {host}", self.port),
            },
            refs: GateRefs::default(),
            supervise: false,
            stale_ok: false,
        };
        change(&mut repo);
        Ok(repo)
    }

    /// Starts a gate for the repository.
    async fn open(&mut self, change: impl FnOnce(&mut GateRepo)) -> Result<()> {
        fs::create_dir_all(self.at("gate"))?;
        let door = Door::Network { address: self.address, bottle: Ipv4Addr::LOCALHOST };
        let config = GateConfig { door, folder: self.at("gate"), identity: None };
        let (ours, theirs) = StdUnixStream::pair()?;
        let gate = Command::new(std::env::current_exe()?)
            .args(["__git-gate", "home", "slug"])
            .arg(serde_json::to_string(&config)?)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        self.gate = Some(Ends(gate));
        ours.set_nonblocking(true)?;
        let io = UnixStream::from_std(ours)?;
        let (channel, _, _) = Channel::establish(io, Side::Dialed, Hello::of(Role::Bundle)).await?;
        let provision = BundleRequest::Gate(Box::new(GateProvision {
            slug: "a-1".parse()?,
            repos: vec![self.repo(change)?],
            known_secrets: vec![SecretText::from(SECRET)],
            rules: vec![RuleFile {
                name: "acme.toml".to_owned(),
                text:
                    "[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\n[allowlist]\npaths = ['^fixtures/']\n"
                        .to_owned(),
            }],
            placeholders: vec![],
            upstream_roots: String::new(),
            ask_seconds: Some(PATIENCE.as_secs()),
        }));
        let answer: BundleEvent = channel.open(&provision).await?.receive().await?;
        ensure!(answer == BundleEvent::GateOpen, "{answer:?}");
        self.channel = Some(channel);
        Ok(())
    }

    /// Runs a script of the agent's.
    fn output(&self, script: &str) -> Result<Output> {
        let output = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var("PATH")?)
            .env("HOME", self.folder.path())
            .env("GATE", format!("http://{}:9420/tool.git", self.address))
            .env("T", TOKEN)
            .env("SECRET", SECRET)
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "A")))
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "a@example.com")))
            .output()?;
        Ok(output)
    }

    /// One that has to do what it is for.
    fn shell(&self, script: &str) -> Result<String> {
        let output = self.output(script)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{script}: {said}");
        Ok(String::from_utf8(output.stdout)? + &said)
    }

    /// One whose push has to be refused with these words.
    fn refused(&self, script: &str, words: &[&str]) -> Result<String> {
        let before = self.upstream()?;
        let output = self.output(script)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{script} was not refused: {said}");
        for word in words {
            ensure!(said.contains(word), "{script}: no {word:?} in {said}");
        }
        for never in [TOKEN, SECRET] {
            ensure!(!said.contains(never), "{script}: the value is told: {said}");
        }
        ensure!(self.upstream()? == before, "{script}: something got upstream");
        Ok(said)
    }

    /// Every ref and every object of the upstream.
    fn upstream(&self) -> Result<String> {
        self.shell(
            "cd up.git; git for-each-ref; git cat-file --batch-all-objects --batch-check='%(objectname)' | sort",
        )
    }
}

fn connect(to: (Ipv4Addr, u16)) -> Result<TcpStream> {
    Ok(TcpStream::connect_timeout(&to.into(), PATIENCE)?)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn until(mut there: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !there() {
        if Instant::now() > end {
            bail!("it did not come");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

async fn whole_way() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    for version in [0, 1, 2] {
        scene.shell(&format!(
            "git -c protocol.version={version} clone -q $GATE v{version} && cd v{version} && git log -1 --format=%s \
             && git checkout -qb topic-{version} && echo {version} > two && git add . && git commit -qm two \
             && git -c protocol.version={version} push -q origin HEAD \
             && test $(git -C ../up.git rev-parse topic-{version}) = $(git rev-parse HEAD)"
        ))?;
    }
    // What others push meanwhile is there at the next fetch; shallow and partial clones work.
    scene.shell(
        "cd seed && echo more > more && git add . && git commit -qm more && git push -q ../up.git main && cd .. \
         && git -C v2 pull -q --rebase origin main && test -e v2/more \
         && git clone -q --depth 1 $GATE shallow && git clone -q --filter=blob:none $GATE partial && test -e partial/more \
         && git -C up.git branch -q -D topic-0 && git -C v0 fetch -q --prune && ! git -C v0 rev-parse -q --verify origin/topic-0",
    )?;
    // A large push is streamed, and gzip bodies are unpacked.
    scene.shell(
        "cd v1 && head -c 5000000 /dev/urandom > big && git add . && git commit -qm big && git push -q origin HEAD \
         && for n in $(seq 300); do git update-ref refs/heads/n$n HEAD; done && git fetch -q origin",
    )?;
    Ok(())
}

async fn attacks() -> Result<()> {
    let mut scene = Scene::new()?;
    scene
        .open(|repo| repo.refs.allow = Some(vec!["refs/heads/topic/**".into(), "refs/notes/*".into()]))
        .await?;
    scene.shell("git clone -q $GATE clone")?;
    let push = "git push origin HEAD:refs/heads/topic/x";
    for (name, script, words) in [
        ("a file", "echo $T > f; git add .; git commit -qm x", "f, line 1 in commit"),
        (
            "a middle commit",
            "echo $T > f; git add .; git commit -qm x; git rm -q f; git commit -qm y",
            "f, line 1",
        ),
        ("a message", "git commit -q --allow-empty -m \"m $T\"", "the commit's message"),
        ("an author", "git commit -q --allow-empty --author \"$T <a@b>\" -m x", "the commit's author"),
        ("a name", "echo x > $T; git add .; git commit -qm x", "the name of a file"),
        ("a folder's name", "mkdir $T; echo x > $T/x; git add .; git commit -qm x", "the name of a file"),
        ("a link", "ln -s $T f; git add .; git commit -qm x", "f, line 1"),
        (
            "a submodule",
            "printf '[submodule \"x\"]\\n\\turl = https://u:%s@h/x\\n' $T > .gitmodules; git add .; git commit -qm x",
            ".gitmodules, line 2",
        ),
        ("a packed file", "echo $T | gzip > f; git add .; git commit -qm x", "f (packed)"),
        ("wide characters", "echo $T | iconv -t UTF-16LE > f; git add .; git commit -qm x", "f in commit"),
        (
            "a binary",
            "(head -c 3000 /dev/zero; printf '%s' $T; head -c 300 /dev/zero) > f; git add .; git commit -qm x",
            "f, line 1",
        ),
        (
            "far inside",
            "(head -c 3000000 /dev/zero | tr '\\0' 'a\\n'; echo; echo $T) > f; git add .; git commit -qm x",
            "f, line 2",
        ),
        (
            "a merge's second parent",
            "git checkout -qb side; echo $T > f; git add .; git commit -qm x; git checkout -q work; git commit -q --allow-empty -m y; git merge -q -s ours -m z side",
            "f, line 1",
        ),
        ("a secret of the bottle", "echo $SECRET > f; git add .; git commit -qm x", "never passes"),
        ("it, encoded", "echo \"x$SECRET\" | base64 > f; git add .; git commit -qm x", "never passes"),
        ("it, marked", "echo \"$SECRET gitleaks:allow\" > f; git add .; git commit -qm x", "never passes"),
        (
            "what a rule of the person's own looks for",
            "echo acme-12345678 > f; git add .; git commit -qm x",
            "your rule `acme`",
        ),
        ("a token in base64", "printf 'user: %s' $T | base64 > f; git add .; git commit -qm x", "in base64"),
        (
            "a file by its name",
            "echo a=b > .env; git add -f .; git commit -qm x",
            "holds secrets by its name",
        ),
        (
            "a pointer of LFS",
            "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > f; git add .; git commit -qm x",
            "Git LFS",
        ),
    ] {
        let script = format!(
            "cd clone; git checkout -qB work origin/main; git branch -qD side 2> /dev/null || true; {script}; {push}"
        );
        scene.refused(&script, &["the git gate refused the push", words]).with_context(|| name.to_owned())?;
    }
    let clean =
        "cd clone; git checkout -qfB work origin/main; git clean -qfd; git commit -q --allow-empty -m x";
    for (script, words) in [
        ("git tag -a -m \"k $T\" v; git push origin v:refs/heads/topic/t", "the tag's message"),
        ("git notes add -m $T; git push origin refs/notes/commits", "line 1"),
        ("git push origin HEAD:refs/heads/main", "refs.allow"),
        ("git push origin HEAD:refs/tags/v9", "refs.tags"),
        ("git push origin HEAD:refs/replace/$(git rev-parse HEAD)", "changes what others see"),
        ("git push origin :refs/heads/main", "refs.delete"),
    ] {
        scene.refused(&format!("{clean}; {script}"), &["the git gate refused the push", words])?;
    }
    // And what is clean passes, until it would lose something. The person's own rule knows a folder of samples.
    scene.shell(&format!(
        "{clean}; mkdir fixtures; echo acme-12345678 > fixtures/f; git add .; git commit -qm x; git push -q origin HEAD:refs/heads/topic/own"
    ))?;
    scene.shell(&format!("{clean}; {push}"))?;
    scene.refused(
        "cd clone; git commit -q --amend --allow-empty -m other; git push -f origin HEAD:refs/heads/topic/x",
        &["refs.force"],
    )?;
    Ok(())
}

/// A pack with a blob that nothing reaches, as no git makes it by itself.
async fn hidden() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x; \
         (git rev-parse HEAD; echo hidden | git hash-object -w --stdin) | git pack-objects -q --stdout > ../pack",
    )?;
    let new = scene.shell("git -C clone rev-parse HEAD")?;
    let line = format!("{} {} refs/heads/x\0report-status side-band-64k", "0".repeat(40), new.trim());
    let mut body = format!("{:04x}{line}0000", line.len() + 4).into_bytes();
    body.extend(fs::read(scene.at("pack"))?);
    let before = scene.upstream()?;
    // As a client does, which first asks for the refs.
    scene.shell("git ls-remote -q $GATE")?;
    let mut socket = connect((scene.address, 9420))?;
    write!(
        socket,
        "POST /tool.git/git-receive-pack HTTP/1.1\r\nHost: git-gate\r\nConnection: close\r\n\
         Content-Type: application/x-git-receive-pack-request\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )?;
    socket.write_all(&body)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.contains("objects that none of its refs reaches"), "{answer}");
    ensure!(scene.upstream()? == before);
    // Addresses that are none, and heads that never end.
    for (head, status) in [
        ("GET /tool.git/objects/info/packs HTTP/1.1", "404"),
        ("GET /tool.git/config HTTP/1.1", "404"),
        ("GET /../tool.git/HEAD HTTP/1.1", "404"),
        ("GET /tool.git/info/refs HTTP/1.1", "403"),
        ("GET /tool.git/info/refs?service=git-upload-archive HTTP/1.1", "403"),
        ("GET /other.git/info/refs?service=git-upload-pack HTTP/1.1", "404"),
        ("POST /tool.git/info/lfs/objects/batch HTTP/1.1", "501"),
    ] {
        let mut socket = connect((scene.address, 9420))?;
        write!(socket, "{head}\r\nHost: git-gate\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        ensure!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
    }
    Ok(())
}

/// Answers the next question as a person would.
async fn decide(channel: Channel, status: Status) -> Result<Question> {
    decide_after(channel, status, || Ok(())).await
}

/// The same, once `meanwhile` is done.
async fn decide_after(
    channel: Channel,
    status: Status,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Question> {
    let mut stream = channel.open(&BundleRequest::Question).await?;
    let BundleEvent::Asked(question) = stream.receive().await? else { bail!("not a question") };
    tokio::task::block_in_place(meanwhile)?;
    let response = Response {
        proposal_id: question.id.clone(),
        status,
        notes: Some("so I say".to_owned()),
        final_file: None,
        decided_at: question.expires_at,
        decided_by: "me".to_owned(),
    };
    stream.message(&Answer::Decided(Box::new(response))).await?;
    stream.end().await?;
    Ok(*question)
}

async fn asked() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let channel = scene.channel.clone().context("a channel")?;
    // Marked by its author: a question even where findings are refused.
    scene.shell("git clone -q $GATE clone; cd clone; echo \"k = $T # gitleaks:allow\" > f; git add .; git commit -qm x")?;
    let no = tokio::spawn(decide(channel.clone(), Status::Rejected));
    scene.refused(
        "cd clone; git push origin HEAD:no",
        &["a person is asked", "the person said no, saying: so I say"],
    )?;
    let question = no.await??;
    ensure!(question.tool == Tool::GitleaksAllow);
    for part in ["aws-access-key-id", "\"f\"", "gitleaks:allow", "refs/heads/no"] {
        ensure!(question.proposed_file.contains(part), "{}", question.proposed_file);
    }
    ensure!(!question.proposed_file.contains(TOKEN));
    let yes = tokio::spawn(decide(channel.clone(), Status::Approved));
    let said = scene.shell("cd clone; git push origin HEAD:yes")?;
    ensure!(said.contains("the person let it pass"), "{said}");
    yes.await??;
    // The same finding again, in another commit: nobody is asked.
    scene.shell("cd clone; git commit -q --amend -m again; git push origin HEAD:retry")?;
    // What others push while a person thinks has gone up before, and is not lost by it.
    let beside = scene.folder.path().to_owned();
    scene.shell("git clone -q $GATE beside; cd beside; git checkout -qb beside; echo 1 > 1; git add .; git commit -qm 1")?;
    scene.shell("cd clone; echo \"$T # gitleaks:allow\" > other; git add .; git commit -qm other")?;
    let gate = format!("http://{}:9420/tool.git", scene.address);
    let waiting = tokio::spawn(decide_after(channel.clone(), Status::Approved, move || {
        run(Command::new("git").args(["push", "-q", &gate, "beside"]).current_dir(beside.join("beside")))
    }));
    scene.shell("cd clone; git push origin HEAD:waited")?;
    waiting.await??;
    let up = scene.upstream()?;
    ensure!(["refs/heads/beside", "refs/heads/waited"].iter().all(|name| up.contains(name)), "{up}");
    // Named by .gitleaksignore, which silences nothing either.
    let ignored = tokio::spawn(decide(channel, Status::Approved));
    scene.shell(
        "cd clone; echo $T > g; echo g:aws-access-key-id:1 > .gitleaksignore; git add .; git commit -qm y; git push origin HEAD:ignored",
    )?;
    ensure!(ignored.await??.proposed_file.contains(".gitleaksignore"));
    scene.refused(
        "cd clone; echo \"x $T\" > h; git add .; git commit -qm z; git push origin HEAD:plain",
        &["h, line 1"],
    )?;
    Ok(())
}

async fn refused_upstream() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let hook = scene.at("up.git/hooks/pre-receive");
    fs::write(&hook, "#!/bin/sh\necho 'the house rules say no' >&2\nexit 1\n")?;
    run(Command::new("chmod").arg("755").arg(&hook))?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    scene.refused("cd clone; git push origin HEAD:topic", &["the house rules say no", "hook declined"])?;
    let mirror = scene.shell("git -C gate/tool.git for-each-ref; git -C gate/tool.git cat-file -t $(git -C clone rev-parse HEAD) || true")?;
    ensure!(!mirror.contains("topic") && !mirror.contains("commit\n"), "{mirror}");
    fs::remove_file(hook)?;
    scene.shell("cd clone; git push -q origin HEAD:topic")?;
    Ok(())
}

async fn all_or_none() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m x")?;
    scene.refused("cd clone; git push origin HEAD:good HEAD:refs/tags/bad", &["refs.tags"])?;
    let hook = scene.at("up.git/hooks/update");
    fs::write(&hook, "#!/bin/sh\ntest $1 != refs/heads/second\n")?;
    run(Command::new("chmod").arg("755").arg(&hook))?;
    // Its own hook speaks when it has the objects already; no ref of it moves.
    let before = scene.shell("git -C up.git for-each-ref")?;
    let output = scene.output("cd clone; git push origin HEAD:first HEAD:second")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("refused the push"), "{said}");
    ensure!(scene.shell("git -C up.git for-each-ref")? == before);
    Ok(())
}

async fn wrong() -> Result<()> {
    let mut scene = Scene::new()?;
    let other = fs::read_to_string(scene.at("other"))?;
    scene
        .open(|repo| {
            if let GateKey::Ssh { private, .. } = &mut repo.key {
                *private = other.as_str().into();
            }
        })
        .await?;
    scene.refused("git clone $GATE c1", &["does not accept the key that the person gave"])?;
    let other = fs::read_to_string(scene.at("other.pub"))?;
    let line = format!("[127.0.0.1]:{} {other}", scene.port);
    scene
        .open(|repo| {
            if let GateKey::Ssh { known_hosts, .. } = &mut repo.key {
                *known_hosts = line;
            }
        })
        .await?;
    scene.refused("git clone $GATE c2", &["host key is not the one that is trusted"])?;
    scene.open(|repo| repo.url = repo.url.replace("up.git", "gone.git")).await?;
    scene.refused("git clone $GATE c3", &["the upstream of tool cannot be reached"])?;
    // Old is served only where the person allows it.
    scene.open(|repo| repo.stale_ok = true).await?;
    scene.shell(
        "git clone -q $GATE c4 && mv up.git away.git && git clone -q $GATE c5 && mv away.git up.git",
    )?;
    scene.open(|_| ()).await?;
    scene.shell("mv up.git away.git")?;
    let output = scene.output("git clone $GATE c6")?;
    ensure!(!output.status.success());
    Ok(())
}

async fn nowhere() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone")?;
    let key = fs::read_to_string(scene.at("client"))?;
    let piece = key.lines().nth(2).context("a line of the key")?.to_owned();
    let found = scene.output(&format!("grep -rF -- '{piece}' gate"))?;
    ensure!(found.stdout.is_empty(), "the key is on disk");
    for entry in fs::read_dir("/proc")?.flatten() {
        for file in ["cmdline", "environ"] {
            let text = fs::read(entry.path().join(file)).unwrap_or_default();
            let has = text.windows(piece.len()).any(|window| window == piece.as_bytes());
            // The grep above is not there any more.
            ensure!(!has, "{}/{file}", entry.path().display());
        }
    }
    // Killed, it takes the agent that holds the key with it.
    let folder = scene.at("gate").canonicalize()?;
    let agents = || {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let lines = processes.filter(|process| {
            fs::read(process.path().join("cmdline")).is_ok_and(|line| line.starts_with(b"ssh-agent"))
                && fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == folder)
        });
        lines.count()
    };
    ensure!(agents() == 1, "{} agents", agents());
    drop(scene.gate.take());
    until(|| agents() == 0)
}
