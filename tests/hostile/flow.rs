//! Runs the commands that read a repository, and checks what they must not do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::Case;
use crate::place::{CANARY, Place};

/// The time limit for a command, in addition to its time for a harmless repository.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The commands that run git in the bottle, and the time for which they may wait for this git. For example, git waits
/// if a pipe replaces `HEAD`.
const GIT_IN_BOTTLE: (&[&str], Duration) = (&["diff", "pull", "apply"], Duration::from_secs(15));

/// The maximum memory of a process, in bytes.
pub(crate) const MEMORY: u64 = 256 << 20;

/// The time after which a command is killed.
const KILLED_AFTER: Duration = Duration::from_secs(30);

/// The address space of each process, so that a defect does not use up the machine.
const ADDRESS_SPACE: u64 = 4 << 30;

/// The exit code of a panic.
const PANIC: i32 = 101;

/// Searches the bottle for the canary. Compressed objects do not contain the canary as plain text, but the objects of
/// the victim are not compressed.
const LOOK: &str =
    "find /workspace /git-objects -type f -size -1000k -exec grep -lF \"$1\" {} + 2>/dev/null; true";

/// A user's home with an agent that waits.
pub(crate) struct Scene {
    home: TestHome,
    /// The time of the slowest command for a harmless repository.
    usual: Duration,
}

/// The bottle of a case, and the commands in its directory.
struct Bottle<'a> {
    scene: &'a Scene,
    place: &'a Place,
    slug: String,
    /// Whether the bottle is exported. An export scans every byte, so an export with a huge file takes long.
    exports: bool,
}

impl Scene {
    /// Creates a scene. Returns `None` if the test is skipped.
    pub(crate) fn new(test: &str) -> Result<Option<Self>> {
        let limit = Some(ADDRESS_SPACE);
        setrlimit(Resource::As, Rlimit { current: limit, maximum: limit })?;
        let mut home = TestHome::new()?;
        let manifest =
            "---\nbackend: linux\nagent_provider: {template: command, command: [/bin/sleep, \"600\"]}\n---\n";
        home.bottle("work", manifest)?.agent("work", "---\nbottle: work\n---\n")?;
        if !home.runs_with_git(test, "linux")? {
            return Ok(None);
        }
        let mut scene = Self { home, usual: Duration::ZERO };
        scene.usual = scene.measure()?;
        Ok(Some(scene))
    }

    /// Measures the time of the slowest command for a harmless repository.
    fn measure(&self) -> Result<Duration> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let slug = format!("usual-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let place = self.place(&slug)?;
        place.repository("project")?;
        let bottle = Bottle { scene: self, place: &place, slug: slug.clone(), exports: true };
        let mut slowest = Duration::ZERO;
        for arguments in
            [&["start", "work", "--cwd", "--detach", "--label", &slug, "-y"][..], &["diff", &slug]]
        {
            let outcome = bottle.runs("project", arguments)?;
            ensure!(outcome.code == 0, "{arguments:?}: {}", outcome.transcript());
            slowest = slowest.max(outcome.took);
        }
        bottle.end()?;
        Ok(slowest)
    }

    fn place(&self, name: &str) -> Result<Place> {
        let root = self.home.outside(&format!("cases/{name}"));
        fs::create_dir_all(&root)?;
        Place::new(root)
    }

    /// Runs the commands on a case twice: as the project of a bottle, and as a live directory that an agent changed.
    pub(crate) fn test(&self, case: &Case) -> Result<()> {
        let place = self.place(&case.name)?;
        if let Some(why) = (case.make)(&place)? {
            bottle_test_support::skip::aloud(&case.name, &why);
            return Ok(());
        }
        let exports = !case.name.ends_with("-huge");
        let bottle =
            |kind: &str| Bottle { scene: self, place: &place, slug: slug(&case.name, kind), exports };
        let tested = bottle("p").as_project().and_then(|()| bottle("l").as_live_directory());
        tested.with_context(|| case.name.clone())?;
        fs::remove_dir_all(self.home.outside(&format!("cases/{}", case.name)))?;
        Ok(())
    }

    /// Runs the commands on a harmless repository. All commands must succeed, and the traps must work.
    pub(crate) fn harmless(&self) -> Result<()> {
        let place = self.place("harmless")?;
        place.repository("project")?;
        place.write("project/found", CANARY)?;
        let trapped = Bottle { scene: self, place: &place, slug: "trapped".to_owned(), exports: false };
        let _ = trapped.succeeds(&["start", "work", "--cwd", "--detach", "--label", "trapped", "-y"])?;
        let _ = trapped.bottle_has_canary().err().context("the canary in the project was not found")?;
        trapped.end()?;
        fs::remove_file(place.path("project/found"))?;
        let bottle = Bottle { scene: self, place: &place, slug: "harmless".to_owned(), exports: true };
        let _ = bottle.succeeds(&["start", "work", "--cwd", "--detach", "--label", "harmless", "-y"])?;
        let _ = bottle.succeeds(&["exec", "harmless", "--", "sh", "-c", "echo two >>code"])?;
        for arguments in [
            &["diff", "harmless"][..],
            &["apply", "harmless", "--yes"],
            &["pull", "harmless", "--uncommitted"],
            &["fork", "harmless", "--label", "harmless-fork"],
            &["export", "harmless", "-o", &place.text("archive")],
            &["import", &place.text("archive"), "--label", "harmless-import", "-y"],
        ] {
            let _ = bottle.succeeds(arguments)?;
        }
        ensure!(place.ran()?.is_empty(), "{:?}", place.ran()?);
        let _ = Command::new(place.program("trap")?).status()?;
        ensure!(place.ran()? == ["trap"], "a program that ran left no mark");
        bottle.end()
    }
}

/// A bottle's name for a case, which has at most 40 characters, and no dashes in a row.
fn slug(case: &str, kind: &str) -> String {
    let plain = case.to_lowercase();
    let end = plain.len().saturating_sub(30);
    let words: Vec<&str> = plain[end..].split('-').filter(|word| !word.is_empty()).collect();
    format!("{kind}-{}", words.join("-"))
}

impl Bottle<'_> {
    /// The case is the project from which a bottle is started.
    fn as_project(&self) -> Result<()> {
        let slug = self.slug.as_str();
        let _ = self.answers("project", &["start", "work", "--cwd", "--dry-run"])?;
        if self.place.path("project/sub").is_dir() {
            let _ = self.answers("project/sub", &["start", "work", "--cwd", "--dry-run"])?;
            let _ = self.answers("project/sub", &["start", "work", "--cwd", "--repository", "--dry-run"])?;
        }
        let started =
            self.answers("project", &["start", "work", "--cwd", "--detach", "--label", slug, "-y"])?;
        if started.code != 0 {
            return Ok(());
        }
        self.bottle_has_canary()?;
        let _ = self.answers("project", &["exec", slug, "--", "sh", "-c", "echo two >>code; echo x >new"])?;
        self.read_by_the_user("project")?;
        self.end()
    }

    /// The agent makes the case in the directory in which the user started the agent.
    fn as_live_directory(&self) -> Result<()> {
        fs::create_dir_all(self.place.path("live"))?;
        let slug = self.slug.as_str();
        let live = ["start", "work", "--cwd=live", "--detach", "--label", slug, "-y"];
        let _ = self.answers("project", &["start", "work", "--cwd=live", "--dry-run"])?;
        let started = self.answers("live", &live)?;
        ensure!(started.code == 0, "{}", started.transcript());
        let copied = Command::new("cp")
            .arg("-a")
            .arg(self.place.path("project/."))
            .arg(self.place.path("live"))
            .status();
        ensure!(copied?.success(), "the case was not copied");
        self.read_by_the_user("live")?;
        self.end()
    }

    /// Runs the commands of a user who takes work out of the bottle.
    fn read_by_the_user(&self, directory: &str) -> Result<()> {
        let slug = self.slug.as_str();
        let (fork, import) = (format!("{slug}-f"), format!("{slug}-i"));
        let archive = self.place.text("archive");
        for arguments in [
            &["diff", slug][..],
            &["diff", slug, "--name-only"],
            &["apply", slug, "--yes"],
            &["pull", slug],
            &["pull", slug, "--uncommitted"],
            &["fork", slug, "--label", &fork],
        ] {
            let _ = self.answers(directory, arguments)?;
        }
        if self.exports {
            let _ = self.answers(directory, &["export", slug, "-o", &archive, "--force"])?;
        }
        if Path::new(&archive).exists() {
            let _ = self.answers(directory, &["import", &archive, "--label", &import, "-y"])?;
        }
        Ok(())
    }

    /// Ends the bottles of this case. A missing bottle is not an error.
    fn end(&self) -> Result<()> {
        let fork = format!("{}-f", self.slug);
        let names = [
            self.slug.clone(),
            fork.clone(),
            format!("{}-i", self.slug),
            "harmless-fork".into(),
            "harmless-import".into(),
        ];
        for slug in &names[..if self.slug == "harmless" { 5 } else { 3 }] {
            for arguments in [
                &["stop", slug, "--time", "0", "-q"][..],
                &["discard", slug, "--yes", "-q"],
                &["snapshots", "rm", slug, "-q"],
            ] {
                let _ = self.scene.home.program(arguments.iter().copied())?.run()?;
            }
        }
        Ok(())
    }

    /// Like [`Self::runs`], but the command must also end in time.
    fn answers(&self, directory: &str, arguments: &[&str]) -> Result<Outcome> {
        let outcome = self.runs(directory, arguments)?;
        let (commands, wait) = GIT_IN_BOTTLE;
        let asks_git = arguments.first().is_some_and(|command| commands.contains(command));
        let usual = self.scene.usual;
        let limit = ANSWERS_WITHIN + usual + if asks_git { wait } else { Duration::ZERO };
        if outcome.took > limit {
            // Other programs may slow the machine down, so the time for a harmless repository is measured again.
            let slower = self.scene.measure()?.div_duration_f64(usual).max(1.0);
            ensure!(
                outcome.took <= limit.mul_f64(slower),
                "{arguments:?} in {directory} took {:?}: {}",
                outcome.took,
                outcome.transcript()
            );
        }
        Ok(outcome)
    }

    /// Runs a command, which must end without a panic, must leave no mark, and must not print the canary.
    fn runs(&self, directory: &str, arguments: &[&str]) -> Result<Outcome> {
        let mut program = self.scene.home.program(arguments.iter().copied())?;
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", self.place.text("decoys"));
        program.directory(self.place.path(directory)).env("PATH", path).deadline(KILLED_AFTER);
        let (outcome, memory) = measured(&self.scene.home, || program.run())?;
        let what = format!("{arguments:?} in {directory}");
        let outcome = outcome.with_context(|| what.clone())?;
        ensure!(outcome.code != PANIC, "{what}: {}", outcome.transcript());
        ensure!(
            memory <= MEMORY,
            "{what}, or a command beside it, used {memory} bytes: {}",
            outcome.transcript()
        );
        for text in [&outcome.stdout, &outcome.stderr] {
            ensure!(!text.contains(CANARY), "{what} shows the canary: {}", outcome.transcript());
        }
        let ran = self.place.ran()?;
        ensure!(ran.is_empty(), "{what} ran {ran:?}: {}", outcome.transcript());
        Ok(outcome)
    }

    fn succeeds(&self, arguments: &[&str]) -> Result<Outcome> {
        let outcome = self.answers("project", arguments)?;
        ensure!(outcome.code == 0, "{arguments:?}: {}", outcome.transcript());
        Ok(outcome)
    }

    /// Returns an error if the bottle contains the canary.
    fn bottle_has_canary(&self) -> Result<()> {
        let arguments = ["exec", &self.slug, "--", "sh", "-c", LOOK, "sh", CANARY];
        let found = self.scene.home.program(arguments)?.run()?;
        ensure!(found.code == 0, "{}", found.transcript());
        if !found.stdout.is_empty() {
            bail!("the bottle has the canary: {}", found.stdout);
        }
        Ok(())
    }
}

/// Runs a command. Also returns the maximum memory of one process in bytes, if the command increased it. The processes
/// are those that ended, and those of running bottles.
fn measured<T>(home: &TestHome, run: impl FnOnce() -> T) -> Result<(T, u64)> {
    let ended = || -> Result<u64> {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)?;
        Ok(u64::try_from(usage.max_rss())? << 10)
    };
    let before = ended()?;
    let done = run();
    let after = ended()?;
    let kept = fs::read_dir("/proc")?.flatten().filter_map(|process| peak_of(&process.path(), home)).max();
    Ok((done, kept.unwrap_or(0).max(if after > before { after } else { 0 })))
}

/// Returns the maximum memory, in bytes, of a process that belongs to a bottle of this home and runs outside of the
/// bottle.
fn peak_of(process: &Path, home: &TestHome) -> Option<u64> {
    let line = fs::read(process.join("cmdline")).ok()?;
    let hash = bottle_host::home_hash(&home.bottle_home());
    String::from_utf8_lossy(&line).contains(&hash).then_some(())?;
    let status = fs::read_to_string(process.join("status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}
