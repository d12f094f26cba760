//! Tests users' images on a real container engine: which images are built, which of their settings are
//! ignored, and which problems are reported.

use std::time::{Duration, Instant};

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::pty::Pty;
use bottle_test_support::scrub::Scrub;
use bottle_test_support::{engine, skip};

use crate::home::snapshot;

/// A home for the Docker backend. Dropping the value removes the images that were built for it.
struct Built {
    home: TestHome,
    hash: String,
}

impl Built {
    /// Creates a home and builds the sidecars' image. If no engine is available, reports that the test is skipped and
    /// returns `None`.
    fn new(test: &str) -> Result<Option<Self>> {
        if let Err(why) = engine::here() {
            skip::aloud(test, &why);
            return Ok(None);
        }
        let home = TestHome::new()?;
        let hash = bottle_host::home_hash(&home.bottle_home());
        let built = Self { home, hash };
        built.write("warm", "FROM debian:bookworm-slim\n", "[\"true\"]")?;
        let warm = built.run(&["start", "warm", "--label", "warm", "-q"])?;
        if warm.stderr.contains("cargo xtask dist") {
            skip::aloud(test, &"there is no dist/bottle: cargo xtask dist");
            return Ok(None);
        }
        let _ = warm.expect_code(0);
        Ok(Some(built))
    }

    /// Adds an agent that runs `command` in an image built from this Dockerfile.
    fn write(&self, name: &str, dockerfile: &str, command: &str) -> Result<()> {
        // The label is unique, so that the engine does not reuse an equal image of another test, because the other test
        // would remove this image.
        let text = format!("{dockerfile}LABEL test={}\n", self.hash);
        self.home.write(&format!("home/.bottle/{name}.Dockerfile"), &text)?;
        self.agent(name, &format!("dockerfile: {name}.Dockerfile"), command)
    }

    /// Adds an agent that runs `command` in this image.
    fn agent(&self, name: &str, image: &str, command: &str) -> Result<()> {
        let provider = format!("{{template: command, command: {command}, {image}}}");
        let bottle = format!("---\nbackend: docker\nagent_provider: {provider}\n---\n");
        self.home.write(&format!("home/.bottle/bottles/{name}.md"), &bottle)?;
        self.home.write(&format!("home/.bottle/agents/{name}.md"), &format!("---\nbottle: {name}\n---\n"))?;
        Ok(())
    }

    fn run(&self, arguments: &[&str]) -> Result<Outcome> {
        self.home.program(arguments.iter().copied())?.deadline(Duration::from_secs(180)).run()
    }

    fn transcript(&self, arguments: &[&str]) -> Result<String> {
        let text = format!("$ bottle {}\n{}\n", arguments.join(" "), self.run(arguments)?.transcript());
        Ok(self.scrub()?.apply(&text))
    }

    fn scrub(&self) -> Result<Scrub> {
        let mut scrub = self.home.scrub()?;
        scrub.add(&self.hash, "[HOME-HASH]")?.add(r"\b[0-9a-f]{12}\b", "[ID]")?;
        scrub.add(r"\bamd64\b|\barm64\b", "[ARCH]")?.add(r"-\d{16}\b", "-[MOMENT]")?;
        Ok(scrub)
    }

    /// Lists all resources of this home on the engine, except agents' images.
    fn leftovers(&self) -> String {
        let ours = format!("name=bottle-{}", self.hash);
        let stand_ins = format!("label=bottle.scratch={}", self.hash);
        let nameless = format!("label=bottle.built-by={}", self.hash);
        let asked: [&[&str]; 5] = [
            &["ps", "--all", "--quiet", "--filter", &ours],
            &["ps", "--all", "--quiet", "--filter", &stand_ins],
            &["network", "ls", "--quiet", "--filter", &ours],
            &["volume", "ls", "--quiet", "--filter", &ours],
            &["images", "--quiet", "--filter", "dangling=true", "--filter", &nameless],
        ];
        asked.iter().map(|arguments| engine::docker(arguments).unwrap_or_default()).collect()
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        // The sidecars' image is not removed, because all homes share it.
        for kind in ["agent", "built", "stage"] {
            let (kind, home) =
                (format!("label=bottle.image={kind}"), format!("label=bottle.built-by={}", self.hash));
            let ids = engine::docker(&["images", "--quiet", "--filter", &kind, "--filter", &home]);
            for id in ids.unwrap_or_default().lines() {
                let _ = engine::docker(&["rmi", "--force", id]);
            }
        }
    }
}

#[test]
fn reports_image_settings_without_effect_and_still_runs() -> Result<()> {
    let Some(built) = Built::new("reports_image_settings_without_effect_and_still_runs")? else {
        return Ok(());
    };
    let text = "FROM debian:bookworm-slim\nENTRYPOINT [\"/bin/false\"]\nHEALTHCHECK CMD touch /ran\nVOLUME /data\nUSER root\n";
    built.write("odd", text, "[sh, -c, \"id -un; ls /ran\"]")?;
    // In this image, the home directory belongs to another user and is not writable.
    let text = "FROM debian:bookworm-slim\nRUN useradd -u 1234 -m locked && chmod 500 /home/locked && chown root /home/locked\nUSER locked\n";
    built.write("locked", text, "[sh, -c, \"cd && pwd && touch here && stat -c %U here\"]")?;
    let dry = built.run(&["start", "odd", "--dry-run", "--json"])?.json()?;
    let mut text = format!("{:#}\n", serde_json::json!([dry["makes"], dry["changed"], dry["notes"]]));
    assert_eq!(built.leftovers(), "", "a dry run made something");
    text += &built.transcript(&["start", "odd", "--label", "odd"])?;
    let dry = built.run(&["start", "odd", "--dry-run", "--json"])?.json()?;
    text += &format!("{:#}\n", serde_json::json!([dry["makes"], dry["changed"], dry["notes"]]));
    text += &built.transcript(&["start", "locked", "--label", "locked", "-q"])?;
    assert_eq!(built.leftovers(), "");
    snapshot!(built.scrub()?.apply(&text));
    Ok(())
}

#[test]
fn a_bad_image_gives_one_cause_and_leaves_nothing() -> Result<()> {
    let Some(built) = Built::new("a_bad_image_gives_one_cause_and_leaves_nothing")? else {
        return Ok(());
    };
    built.write("failing", "FROM debian:bookworm-slim\nRUN echo so far so good && exit 7\n", "[sh]")?;
    built.write("empty", "FROM scratch\n", "[sh]")?;
    built.write("nobody", "FROM debian:bookworm-slim\nUSER somebody\n", "[sh]")?;
    built.agent("absent", "image: bottle.invalid/nothing:1", "[sh]")?;
    built.agent("foreign", "image: ./foreign.tar", "[sh]")?;
    let loaded = foreign(&built.home.bottle_home().join("foreign.tar"), &built.hash)?;
    built.agent("text", "image: ./text.Dockerfile", "[sh]")?;
    built.home.write("home/.bottle/text.Dockerfile", "FROM debian\n")?;
    let mut text = String::new();
    for agent in ["failing", "empty", "nobody", "absent", "foreign", "text"] {
        text += &built.transcript(&["start", agent, "--label", agent])?;
    }
    let mut scrub = built.scrub()?;
    // The message about an unknown registry depends on the machine's resolver.
    scrub.add(r"(cannot be pulled from [^:]+: ).*", "$1[CAUSE]")?;
    snapshot!(scrub.apply(&text));
    assert_eq!(engine::docker(&["image", "inspect", "--format", "{{.Id}}", &loaded]), None);
    // The layers of a failed build remain for the next attempt, until a cleanup removes them.
    let _ = built.run(&["cleanup", "--yes"])?.expect_code(0);
    assert_eq!(built.leftovers(), "");
    Ok(())
}

#[test]
fn reports_a_snapshot_image_removed_by_hand_and_resumes_without() -> Result<()> {
    let Some(mut built) = Built::new("reports_a_snapshot_image_removed_by_hand_and_resumes_without")? else {
        return Ok(());
    };
    built.home.without_cleanup();
    built.write("work", "FROM debian:bookworm-slim\nVOLUME /data\n", "[sleep, \"600\"]")?;
    let _ = built.run(&["start", "work", "--label", "work", "--detach", "-q"])?.expect_code(0);
    let write = "head -c 3000000 /dev/urandom > ~/three; echo written";
    let _ = built.run(&["exec", "work", "--", "sh", "-c", write])?.expect_code(0);
    let commit = built.run(&["commit", "work", "--json"])?.json()?;
    let bytes = commit["bytes"].as_u64().unwrap_or_default();
    assert!((3_000_000..3_100_000).contains(&bytes), "{commit}");
    // After a resume, the same files are still changes.
    let _ = built.run(&["stop", "work", "--time", "0", "-q"])?.expect_code(0);
    let _ = built.run(&["resume", "work", "--snapshot", "--yes", "--detach", "-q"])?.expect_code(0);
    let again = built.run(&["commit", "work", "--json"])?.json()?;
    let bytes = again["bytes"].as_u64().unwrap_or_default();
    assert!((3_000_000..3_100_000).contains(&bytes), "{again}");
    // The commit reports omitted files before it saves the snapshot.
    let mut text = built.transcript(&["commit", "work"])?;
    let listed = built.run(&["list", "snapshots", "--json"])?.json()?;
    let _ = built.run(&["stop", "work", "--time", "0", "-q"])?.expect_code(0);
    engine::docker(&["rmi", listed[0]["reference"].as_str().unwrap_or_default()]).expect("removed by hand");
    text += &built.transcript(&["snapshots"])?;
    text += &built.transcript(&["resume", "work", "--snapshot", "--yes", "--detach"])?;
    let kept = format!("bottle-{}-agent-work", built.hash);
    let _ = engine::docker(&["rm", "--volumes", &kept]);
    text += &built.transcript(&["resume", "work", "--yes", "--detach"])?;
    text += &built.transcript(&["exec", "work", "--", "sh", "-c", "ls ~ | wc -l"])?;
    let _ = built.run(&["snapshots", "rm", "work"])?;
    let _ = built.run(&["stop", "work", "--time", "0", "-q"])?;
    let _ = built.run(&["cleanup", "--all", "--yes"])?;
    let _ = engine::docker(&["rm", "--force", "--volumes", &kept]);
    assert_eq!(built.leftovers(), "");
    snapshot!(text);
    Ok(())
}

/// Writes an image for a foreign architecture in the format of `docker save`, and returns its id. `word`
/// makes the image unique to a test.
fn foreign(path: &std::path::Path, word: &str) -> Result<String> {
    fn archive(files: &[(&str, &[u8])]) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, *bytes)?;
        }
        Ok(archive.into_inner()?)
    }
    let layer = archive(&[("hello", b"hello")])?;
    let hash =
        |bytes: &[u8]| format!("sha256:{}", hex::encode(<sha2::Sha256 as sha2::Digest>::digest(bytes)));
    let digest = hash(&layer);
    let config = serde_json::json!({
        "architecture": "s390x", "os": "linux", "config": {"Labels": {"test": word}}, "rootfs": {"type": "layers", "diff_ids": [digest]},
    });
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]);
    let (config, manifest) = (config.to_string(), manifest.to_string());
    let files =
        [("config.json", config.as_bytes()), ("layer.tar", &layer), ("manifest.json", manifest.as_bytes())];
    std::fs::write(path, archive(&files)?)?;
    Ok(hash(config.as_bytes()))
}

/// Waits until `condition` is true. `what` describes the condition in the error message.
fn until(what: &str, condition: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        anyhow::ensure!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Whether a container of the engine runs `command`.
fn runs(command: &str) -> bool {
    // Listing containers fails if a container is removed at that moment.
    let list = || engine::docker(&["ps", "--quiet"]);
    let running = (0..50).find_map(|_| list()).unwrap_or_default();
    // Another test may have removed its container meanwhile.
    let commands =
        running.lines().filter_map(|id| engine::docker(&["inspect", "--format", "{{.Config.Cmd}}", id]));
    commands.into_iter().any(|running| running.contains(command))
}

#[test]
fn shows_a_build_and_its_progress_and_cancels_it_by_key() -> Result<()> {
    let test = "shows_a_build_and_its_progress_and_cancels_it_by_key";
    let Some(built) = Built::new(test)? else { return Ok(()) };
    let word = format!("slow-{}", built.hash);
    let text = format!("FROM debian:bookworm-slim\nRUN echo {word} && sleep 300\n");
    built.write("slow", &text, "[sh]")?;
    let start = built.home.program(["start", "slow", "--label", "slow"])?;
    let mut pty = Pty::spawn(start.command(), 40, 100)?;
    pty.wait_for("builds")?;
    pty.wait_for("the image of the Dockerfile slow.Dockerfile is built")?;
    pty.wait_for("Start slow")?;
    assert!(!runs(&word) && built.leftovers().is_empty(), "it is built before the answer");
    pty.type_keys("n\r")?;
    pty.wait_for("nothing was started")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_eq!(built.leftovers(), "");

    let mut pty = Pty::spawn(start.command(), 40, 100)?;
    pty.wait_for("Start slow")?;
    pty.type_keys("y\r")?;
    pty.wait_for(&format!("the image of the Dockerfile slow.Dockerfile: {word}"))?;
    until("the step runs", || runs(&word))?;
    pty.type_keys("\x03")?;
    pty.wait_for("interrupted by signal 2")?;
    pty.wait_for("`bottle cleanup` removes it")?;
    assert_eq!(pty.wait_exit()?, 130);
    until("the build ends in the engine too", || !runs(&word))?;
    let _ = built.run(&["cleanup", "--yes"])?.expect_code(0);
    assert_eq!(built.leftovers(), "");
    Ok(())
}
