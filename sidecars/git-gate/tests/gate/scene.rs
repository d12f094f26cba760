//! Provides the test fixture: an upstream behind OpenSSH, a gate, and a directory for clients.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_channel::{Channel, Side};
use bottle_daemon::ListenerConfig;
use bottle_git_gate::{FORWARD_SECONDS, GateConfig};
use bottle_harden::identity::Identity;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, RuleFile};
use bottle_protocol::session::git_gate::{GateKey, GateProvision, GateRefs, GateRepo};
use bottle_protocol::session::guest::SecretText;
use bottle_protocol::session::{Hello, Role};
use bottle_test_support::killed_on_drop::KilledOnDrop;
use bottle_test_support::sshd::{self, Sshd, make_key, run};
use tempfile::TempDir;
use tokio::net::UnixStream;

/// The time limit for one step of a test. This limit is long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A token in the format of an AWS key. The token is not in use.
pub(crate) const TOKEN: &str = "AKIAQWERTYUIOPASDFG2";

/// A known secret that the agent has too. A push that contains this secret is blocked, but does not count as a guess.
pub(crate) const SECRET: &str = "correct-horse-battery-staple";

/// A real credential that only the gate receives. Pushes that contain parts of this credential count as guesses and
/// lock the bottle.
pub(crate) const KEY: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4Po6As8Dg1Hj3Kl5";

/// The endpoint that receives pushes.
pub(crate) const RECEIVE: &str = "/tool.git/git-receive-pack";

/// The object id that consists of zeros. git uses this id for a ref that does not exist.
pub(crate) const ZERO: &str = "0000000000000000000000000000000000000000";

/// Returns a script that creates `count` branches in the upstream. Each branch names a different commit.
pub(crate) fn many_commits(count: usize) -> String {
    format!(
        "awk 'BEGIN {{ for (n = 1; n <= {count}; n++) print \"commit refs/heads/team/b\" n \"\\ncommitter A \
         <a@example.com> \" n \" +0000\\ndata 1\\nx\\nfrom refs/heads/main^0\" }}' \
         | git -C up.git fast-import --quiet; git -C up.git pack-refs --all"
    )
}

/// The name of the file with the standard error, and thereby the log, of all gates of a scene.
const LOG: &str = "gate.stderr";

/// An upstream behind OpenSSH, a gate, and a clone.
pub(crate) struct Scene {
    pub(crate) directory: TempDir,
    pub(crate) port: u16,
    pub(crate) address: Ipv4Addr,
    pub(crate) channel: Option<Channel>,
    pub(crate) sshd: Option<Sshd>,
    pub(crate) gate: Option<KilledOnDrop>,
    /// The time limit for the upstream to accept a push, in seconds.
    pub(crate) forward: u64,
    /// The credential that the gate receives in addition to the known secret.
    pub(crate) credential: String,
    /// The number of guesses at the credential that lock the bottle. `None` disables the lock-out.
    pub(crate) lock_after: Option<usize>,
    /// The user to which the gate switches if root runs the test.
    pub(crate) identity: Option<Identity>,
    /// A command that starts the gate. The command line of the gate is appended to this command.
    pub(crate) wrapper: Vec<String>,
    /// The trusted root certificates for https.
    pub(crate) roots: String,
}

impl Scene {
    /// Creates a scene. The upstream of the scene has one commit.
    pub(crate) fn new() -> Result<Self> {
        Self::with("")
    }

    /// Creates a scene with additional lines in `sshd_config`.
    pub(crate) fn with(lines: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        for key in ["client", "other"] {
            make_key(&at(key))?;
        }
        fs::copy(at("client.pub"), at("authorized"))?;
        let sshd = Sshd::start(directory.path(), Ipv4Addr::LOCALHOST.into(), lines)?;
        sshd::seed(directory.path(), &at("up.git"))?;
        // No other server on this machine uses the port. The address is derived from the port, so no other scene uses
        // the address.
        let [high, low] = sshd.port().to_be_bytes();
        let address = Ipv4Addr::new(127, 77, high, low);
        Ok(Self {
            directory,
            port: sshd.port(),
            address,
            channel: None,
            sshd: Some(sshd),
            gate: None,
            forward: FORWARD_SECONDS,
            credential: KEY.to_owned(),
            lock_after: None,
            identity: None,
            wrapper: Vec::new(),
            roots: String::new(),
        })
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn repo(&self, change: impl FnOnce(&mut GateRepo)) -> Result<GateRepo> {
        let user = sshd::user()?;
        let host = fs::read_to_string(self.at("host.pub"))?;
        let mut repo = GateRepo {
            address: None,
            name: "tool".parse()?,
            url: format!("ssh://{user}@127.0.0.1:{}{}", self.port, self.at("up.git").display()),
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

    /// Configures git in the scene's directory to use the upstream over plain ssh. Returns the URL of the upstream.
    #[allow(dead_code, reason = "only the benches compare with plain ssh")]
    pub(crate) fn enable_plain_ssh(&self) -> Result<String> {
        let repo = self.repo(|_| ())?;
        let GateKey::Ssh { known_hosts, .. } = &repo.key else { bail!("the upstream has no ssh key") };
        fs::write(self.at("known_hosts"), known_hosts)?;
        self.shell(
            "git config --global core.sshCommand \"ssh -F /dev/null -i $HOME/client -o UserKnownHostsFile=$HOME/known_hosts\"",
        )?;
        Ok(repo.url)
    }

    /// Starts a gate for the repository.
    pub(crate) async fn open(&mut self, change: impl FnOnce(&mut GateRepo)) -> Result<()> {
        fs::create_dir_all(self.at("gate"))?;
        if let Some(Identity { uid, gid }) = self.identity {
            std::os::unix::fs::chown(self.at("gate"), Some(uid), Some(gid))?;
        }
        let proxy = ListenerConfig::Network { address: self.address, bottle: Ipv4Addr::LOCALHOST };
        // An earlier gate must stop first.
        drop(self.gate.take());
        let config = GateConfig {
            proxy,
            directory: self.at("gate"),
            identity: self.identity,
            forward_seconds: self.forward,
            lock_after: self.lock_after,
        };
        let (ours, theirs) = StdUnixStream::pair()?;
        let own = std::env::current_exe()?.display().to_string();
        let mut line = self.wrapper.iter().map(String::as_str).chain([own.as_str()]);
        let gate = Command::new(line.next().context("a program")?)
            .args(line)
            .args(["__git-gate", "home", "slug"])
            .arg(serde_json::to_string(&config)?)
            .env_clear()
            // A coverage run sets this variable. The profile's name must contain `%c`, so that the file is mapped when
            // the gate starts. A confined gate cannot open the file when it exits.
            .envs(std::env::var_os("LLVM_PROFILE_FILE").map(|file| ("LLVM_PROFILE_FILE", file)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stderr(File::options().create(true).append(true).open(self.at(LOG))?)
            .spawn()?;
        self.gate = Some(KilledOnDrop(gate));
        ours.set_nonblocking(true)?;
        let io = UnixStream::from_std(ours)?;
        let (channel, _, _) = Channel::establish(io, Side::Dialed, Hello::of(Role::Bundle)).await?;
        let provision = BundleRequest::Gate(Box::new(GateProvision {
            slug: "a-1".parse()?,
            repos: vec![self.repo(change)?],
            credentials: vec![SecretText::from(self.credential.as_str())],
            known_secrets: vec![SecretText::from(SECRET)],
            rules: vec![RuleFile {
                name: "acme.toml".to_owned(),
                text: "[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\n\
                     [[rules]]\nid = 'deploy'\nregex = 'deploy-[0-9]{8}'\npath = '^deploy/'\n\
                     [[rules]]\nid = 'keys'\npath = '\\.acme$'\n\
                     [allowlist]\npaths = ['^fixtures/']\n"
                    .to_owned(),
            }],
            placeholders: vec![],
            upstream_roots: self.roots.clone(),
            ask_seconds: Some(PATIENCE.as_secs()),
        }));
        let answer: BundleEvent = channel.open(&provision).await?.receive().await?;
        ensure!(answer == BundleEvent::GateOpen, "{answer:?}");
        self.channel = Some(channel);
        Ok(())
    }

    /// Runs a shell script as the agent would.
    pub(crate) fn output(&self, script: &str) -> Result<Output> {
        let output = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", std::env::var("PATH")?)
            .env("HOME", self.directory.path())
            .env("GATE", format!("http://{}:9420/tool.git", self.address))
            .env("T", TOKEN)
            .env("SECRET", SECRET)
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "A")))
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "a@example.com")))
            .output()?;
        Ok(output)
    }

    /// Runs a shell script that must succeed.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        let output = self.output(script)?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = || fs::read_to_string(self.at(LOG)).unwrap_or_default();
        ensure!(
            output.status.success(),
            "{script}: {}\n{stdout}\n{stderr}\nthe gate's log:\n{}",
            output.status,
            log()
        );
        Ok(stdout + &stderr)
    }

    /// Writes a file of bytes that cannot be compressed. The bytes are the same in each run: random bytes would
    /// sometimes look like a binary key, and the gate would refuse the push.
    pub(crate) fn write_noise(&self, name: &str, count: usize) -> Result<()> {
        let mut state = 88_172_645_463_325_252_u64;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        let noise: Vec<u8> = (0..count / 8).flat_map(next).collect();
        Ok(fs::write(self.at(name), noise)?)
    }

    /// Runs a shell script that pushes. The push must be refused with a message that contains `words`.
    pub(crate) fn refused(&self, script: &str, words: &[&str]) -> Result<String> {
        let before = self.upstream()?;
        let output = self.output(script)?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{script} was not refused: {stderr}");
        for word in words {
            ensure!(stderr.contains(word), "{script}: no {word:?} in {stderr}");
        }
        for value in [TOKEN, SECRET] {
            ensure!(!stderr.contains(value), "{script}: the message contains the secret: {stderr}");
        }
        ensure!(self.upstream()? == before, "{script}: the upstream has changed");
        Ok(stderr)
    }

    /// Sends a raw request and returns the response.
    pub(crate) fn post(&self, path: &str, headers: &str, body: &[u8]) -> Result<String> {
        let mut socket = self.begin(path, headers, body.len())?;
        // The gate may respond before it has read the complete body.
        let _ = socket.write_all(body);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Sends the head of a raw request.
    pub(crate) fn begin(&self, path: &str, headers: &str, length: usize) -> Result<TcpStream> {
        let mut socket = connect((self.address, 9420))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nHost: git-gate\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
        )?;
        Ok(socket)
    }

    /// Sends a raw push that must be refused with a message that contains `word`.
    pub(crate) fn refused_raw(&self, body: &[u8], word: &str) -> Result<()> {
        let before = self.upstream()?;
        // Lists the refs first, as a git client does.
        self.shell("git ls-remote -q $GATE")?;
        let answer = self.post(RECEIVE, "", body)?;
        ensure!(answer.contains(word), "no {word:?} in {answer}");
        ensure!(self.upstream()? == before, "the upstream has changed");
        Ok(())
    }

    /// Returns the gate's process id.
    pub(crate) fn gate_pid(&self) -> Result<u32> {
        Ok(self.gate.as_ref().context("a gate")?.0.id())
    }

    /// Returns the process ids of this gate's ssh control masters.
    pub(crate) fn masters(&self) -> Result<Vec<String>> {
        let mirror = self.at("gate/tool.git").canonicalize()?;
        let processes = fs::read_dir("/proc")?.flatten().map(|process| process.path());
        let masters = processes.filter(|process| {
            fs::read(process.join("cmdline")).is_ok_and(|line| {
                line.starts_with(b"ssh\0")
                    && line.split(|byte| *byte == 0).any(|word| word == b"ControlMaster=yes")
            }) && fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == mirror)
        });
        Ok(masters.filter_map(|process| Some(process.file_name()?.to_str()?.to_owned())).collect())
    }

    /// Lists all refs and objects of the upstream.
    pub(crate) fn upstream(&self) -> Result<String> {
        self.shell(
            "cd up.git; git for-each-ref; git cat-file --batch-all-objects --batch-check='%(objectname)' | sort",
        )
    }
}

pub(crate) fn connect(to: (Ipv4Addr, u16)) -> Result<TcpStream> {
    Ok(TcpStream::connect_timeout(&to.into(), PATIENCE)?)
}

/// Waits until a condition is true.
pub(crate) fn until(mut condition: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > end {
            bail!("the condition did not become true in {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Encodes the head of a push from raw lines and a flush packet.
pub(crate) fn head(lines: &[String]) -> Vec<u8> {
    let mut head = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let capabilities = if number == 0 { "\0report-status side-band-64k" } else { "" };
        let length = line.len() + capabilities.len() + 4;
        head.extend(format!("{length:04x}{line}{capabilities}").into_bytes());
    }
    head.extend(b"0000");
    head
}

/// Installs a hook in the upstream.
pub(crate) fn hook(scene: &Scene, name: &str, script: &str) -> Result<PathBuf> {
    let hook = scene.at("up.git/hooks").join(name);
    fs::write(&hook, format!("#!/bin/sh\n{script}\n"))?;
    run(Command::new("chmod").arg("755").arg(&hook))?;
    Ok(hook)
}
