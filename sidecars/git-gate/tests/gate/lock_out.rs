//! Tests pushes that guess credentials: which facts a verdict reveals, and when the gate locks the bottle.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, bail, ensure};
use bottle_channel::Channel;
use bottle_policy::lock_out::{HITS, LockOut, SENTENCE};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Written};

use crate::scene::{KEY, SECRET, Scene};

const LOCKED: &str = "This bottle is locked";

fn any_topic(repo: &mut bottle_protocol::session::git_gate::GateRepo) {
    repo.refs.allow = Some(vec!["refs/heads/**".into()]);
}

/// Returns a script that runs the commands in `make` and pushes the commit that they create.
fn push_script(make: &str) -> String {
    format!("cd clone; git checkout -q origin/main; {make}; git push origin HEAD:refs/heads/topic/x")
}

async fn request(channel: &Channel, request: &BundleRequest) -> Result<BundleEvent> {
    Ok(channel.open(request).await?.receive().await?)
}

fn channel(scene: &Scene) -> Result<&Channel> {
    scene.channel.as_ref().ok_or_else(|| anyhow::anyhow!("no channel"))
}

fn is_locked(scene: &Scene) -> Result<()> {
    scene.refused(&push_script("git commit -q --allow-empty -m harmless"), &[SENTENCE])?;
    scene.refused("cd clone; git fetch origin", &[SENTENCE])?;
    scene.refused("git clone $GATE another", &[SENTENCE])?;
    // A client may push and fetch without listing the refs again.
    let answer = scene.post("/tool.git/git-receive-pack", "", b"0000")?;
    ensure!(answer.contains(LOCKED) && answer.contains("unpack refused"), "{answer}");
    let answer = scene.post("/tool.git/git-upload-pack", "", b"0000")?;
    ensure!(answer.contains(LOCKED), "{answer}");
    Ok(())
}

pub(crate) async fn locked() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.lock_after = Some(HITS);
    scene.open(any_topic).await?;
    scene.shell("git clone -q $GATE clone")?;
    // Neither a secret that the agent has, in any spelling, nor a repeated guess locks the bottle.
    for number in 0..HITS + 1 {
        let known = SECRET.replace('-', &"-".repeat(number + 1));
        scene.refused(
            &push_script(&format!("echo {known} > f; git add .; git commit -qm x")),
            &["never passes"],
        )?;
        let guess = &KEY[..16];
        let again = format!("echo {number} > g; echo {guess} > f; git add .; git commit -qm x");
        scene.refused(&push_script(&again), &["never passes"])?;
    }
    let part = |number: usize| &KEY[number..number + 16];
    // A push that is refused for another reason also counts as a guess.
    let lfs = "printf 'version https://git-lfs.github.com/spec/v1\\n' > l";
    let beside =
        format!("git commit -q --allow-empty -m 'm {}'; {lfs}; git add .; git commit -qm x", part(1));
    scene.refused(&push_script(&beside), &["a Git LFS pointer"])?;
    let makes = [
        format!("echo x > {}; git add .; git commit -qm x", part(2)),
        format!("(echo text; echo {} | gzip) > f; git add .; git commit -qm x", part(3)),
    ];
    ensure!(makes.len() + 3 == HITS, "two hits precede these, and one follows");
    for make in makes {
        scene.refused(&push_script(&make), &["remote: the git gate refused the push", "never passes"])?;
    }
    let last = format!("cd clone; git push origin HEAD:refs/heads/topic/{}", part(4));
    scene.refused(&last, &[&format!("remote: {SENTENCE}")])?;
    is_locked(&scene)?;
    // The gate locked the bottle before the bundle read the hits. The gate reports each piece to the bundle once.
    let mut hits = channel(&scene)?.open(&BundleRequest::Hits).await?;
    let mut pieces = BTreeSet::new();
    for _ in 0..HITS {
        let BundleEvent::Hit { piece, place } = hits.receive().await? else { bail!("no hit") };
        ensure!(pieces.insert(piece) && place == "tool");
        hits.message(&Written {}).await?;
    }
    Ok(())
}

/// Several pieces in one compressed file count as separate pieces, like pieces in several files.
pub(crate) async fn packed() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.lock_after = Some(HITS);
    scene.open(any_topic).await?;
    scene.shell("git clone -q $GATE clone")?;
    let parts =
        (0..HITS).map(|number| KEY[number..number + 16].to_owned()).collect::<Vec<_>>().join("\\n--\\n");
    let packed = format!("printf '{parts}' | gzip > f; git add .; git commit -qm x");
    scene.refused(&push_script(&packed), &[&format!("remote: {SENTENCE}")])?;
    is_locked(&scene)
}

/// The first file contains more findings than a report can list. All of these findings are a secret that the agent has.
/// These findings do not hide guesses in a later file: the guesses still count, and the answer is the same for right
/// and wrong guesses.
pub(crate) async fn beyond_the_limit() -> Result<()> {
    const LIMIT: usize = 100;
    let mut scene = Scene::new()?;
    scene.lock_after = Some(HITS);
    scene.open(any_topic).await?;
    scene.shell("git clone -q $GATE clone")?;
    // Each spelling is a separate finding.
    let spellings = (1..=LIMIT).map(|dashes| SECRET.replacen('-', &"-".repeat(dashes), 1) + "\n");
    fs::write(scene.at("spelled"), spellings.collect::<String>())?;
    let spelled = "cp ../spelled a";
    let push = |guess: &str| {
        let refused = push_script(&format!("{spelled}; echo {guess} > b; git add .; git commit -qm x"));
        let answer = scene.refused(&refused, &["never passes"])?;
        let lines = answer.lines().filter(|line| line.starts_with("remote:"));
        Ok::<_, anyhow::Error>(lines.map(without_commit).collect::<Vec<_>>())
    };
    let wrong = push("none")?;
    for number in 0..HITS - 1 {
        let right = push(&KEY[number..number + 16])?;
        ensure!(right == wrong, "a right guess is answered with {right:?}, not {wrong:?}");
    }
    let last = format!("{spelled}; echo {} > b; git add .; git commit -qm x", &KEY[HITS..HITS + 16]);
    scene.refused(&push_script(&last), &[&format!("remote: {SENTENCE}")])?;
    is_locked(&scene)
}

/// Removes the id of the commit from a line of an answer.
fn without_commit(line: &str) -> String {
    match line.split_once(" in commit ") {
        Some((place, rest)) => format!("{place}{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit())),
        None => line.to_owned(),
    }
}

pub(crate) async fn notified() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(any_topic).await?;
    scene.shell("git clone -q $GATE clone")?;
    let why = LockOut { daemon: "egress".into(), hits: HITS, places: vec!["a.example".into()], parent: None };
    ensure!(request(channel(&scene)?, &BundleRequest::Lock(why)).await? == BundleEvent::Locked);
    is_locked(&scene)
}

/// Pushes files that contain the end of a credential's public part, followed by guessed letters of the private part.
/// Some guesses are right, and others are wrong. `BOTTLE_ORACLE_REQUESTS` sets the number of files (default 1,000). The
/// gate accepts all files, with and without the lock-out, so no verdict reveals which letters are right. The gate
/// refuses a push that contains the complete credential.
pub(crate) async fn guesses() -> Result<()> {
    const PUBLIC: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJkZXBsb3llciIsImFkbWluIjp0cnVlfQ.";
    let count = std::env::var("BOTTLE_ORACLE_REQUESTS").map_or(Ok(1_000), |count| count.parse::<usize>())?;
    let mut scene = Scene::new()?;
    scene.credential = format!("{PUBLIC}{KEY}");
    for lock_after in [None, Some(HITS)] {
        scene.lock_after = lock_after;
        scene.open(any_topic).await?;
        scene.shell("rm -rf clone; git clone -q $GATE clone; mkdir clone/guesses")?;
        let end = &PUBLIC[PUBLIC.len() - 5..];
        for number in 0..count {
            let known = number / 2 % 8;
            let letters: String = if number % 2 == 0 {
                KEY[..=known].to_owned()
            } else {
                format!("{}{}", &KEY[..known], KEY[known..].chars().next_back().unwrap_or_default())
            };
            fs::write(scene.at(&format!("clone/guesses/{number}")), format!("{end}{letters}\n{number}"))?;
        }
        scene.shell(&push_script("git add .; git commit -qm guesses"))?;
        // A separate commit contains the complete credential.
        let whole = format!("cd clone; echo {} > f; git add .; git commit -qm x", scene.credential);
        scene.refused(&format!("{whole}; git push origin HEAD:refs/heads/topic/x"), &["never passes"])?;
        scene.shell("git -C up.git update-ref -d refs/heads/topic/x")?;
    }
    Ok(())
}

/// The verdict is the same for a part of a credential and for the complete credential, and for one guess and for many
/// guesses in a file. The verdict does not depend on the offset or the marks of a finding either.
pub(crate) async fn verdicts() -> Result<()> {
    let mut scene = Scene::new()?;
    scene
        .open(|repo| {
            any_topic(repo);
            repo.supervise = true;
        })
        .await?;
    scene.shell("git clone -q $GATE clone")?;
    let file = |text: &str| format!("printf '{text}' > f; git add .; git commit -qm x");
    let letters = |text: &str| text.chars().map(|letter| format!("{letter}\\n")).collect::<String>();
    let mut verdicts = Vec::new();
    for text in [
        KEY[..16].to_owned(),
        KEY.to_owned(),
        format!("a line\\nanother\\n{}", &KEY[3..19]),
        format!("{}\\n---\\n{}\\n---\\n{}", &KEY[..16], &KEY[20..36], &KEY[10..30]),
        letters(&KEY[..14]),
        letters(&KEY[..30]),
        format!("{} gitleaks:allow", &KEY[..16]),
        format!("x gitleaks:allow\\n{}", letters(&KEY[..20])),
        format!("AKIAQWERTYUIOPASDFG2 {}", &KEY[..16]),
        format!("{0}\\n{0}\\n{0}", &KEY[..16]),
    ] {
        let verdict = scene.refused(&push_script(&file(&text)), &["never passes"])?;
        let lines = verdict.lines().filter(|line| line.starts_with("remote: "));
        // The commit id differs in each push.
        let plain = lines.map(|line| match line.split_once(" in commit ") {
            Some((before, after)) => format!("{before} in commit {}", after.get(12..).unwrap_or_default()),
            None => line.trim_end().to_owned(),
        });
        verdicts.push((text, plain.collect::<Vec<_>>()));
    }
    for (text, verdict) in &verdicts {
        ensure!(*verdict == verdicts[0].1, "{text}: {verdict:?} is not {:?}", verdicts[0].1);
    }
    // The verdict is also the same for file names, because a name or its length would reveal where the match
    // starts.
    let name = |name: &str| format!("touch {name}; git add .; git commit -qm x");
    let one = scene.refused(&push_script(&name(&KEY[..16])), &["the name of a file"])?;
    ensure!(!one.contains("characters"), "{one}");
    Ok(())
}
