//! Tests the user's approval of findings.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use bottle_channel::Channel;
use bottle_protocol::queue::{Answer, Question, Response, Scope, Status, Tool};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_test_support::sshd::run;

use crate::scene::{Scene, TOKEN};

/// Starts a gate with a channel for questions, and creates a clone. The last commit of the clone contains a token that
/// is marked as harmless. A marked finding needs approval even in a repository that blocks other findings.
pub(crate) async fn marked() -> Result<(Scene, Channel)> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let channel = scene.channel.clone().context("a channel")?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; echo \"k = $T # gitleaks:allow\" > f; git add .; git commit -qm x",
    )?;
    Ok((scene, channel))
}

/// Answers the next question of the gate with `status`, as the user would.
pub(crate) async fn decide(channel: Channel, status: Status) -> Result<Question> {
    decide_after(channel, status, || Ok(())).await
}

/// Runs `meanwhile` while the next question waits, and then answers the question with `status`.
pub(crate) async fn decide_after(
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
        scope: Scope::Run,
        decided_by: "me".to_owned(),
    };
    stream.message(&Answer::Decided(Box::new(response))).await?;
    // The gate may have disconnected after the answer, so the error is ignored.
    let _ = stream.end().await;
    Ok(*question)
}

pub(crate) async fn decided() -> Result<()> {
    let (scene, channel) = marked().await?;
    let no = tokio::spawn(decide(channel.clone(), Status::Rejected));
    scene.refused(
        "cd clone; git push origin HEAD:no",
        &["this push waits for the user's approval", "the user rejected it: so I say"],
    )?;
    let question = no.await??;
    ensure!(question.tool == Tool::GitleaksAllow);
    for part in ["aws-access-key-id", "\"f\"", "gitleaks:allow", "refs/heads/no"] {
        ensure!(question.proposed_file.contains(part), "{}", question.proposed_file);
    }
    // The user sees the line, but not the secret.
    ensure!(
        question.proposed_file.contains("\"excerpt\": \"k = [redacted] # gitleaks:allow\""),
        "{}",
        question.proposed_file
    );
    ensure!(question.proposed_file.contains("\"line\": 1"), "{}", question.proposed_file);
    ensure!(!question.proposed_file.contains(TOKEN) && !question.proposed_file.contains(&TOKEN[8..]));
    let yes = tokio::spawn(decide(channel.clone(), Status::Approved));
    let output = scene.shell("cd clone; git push origin HEAD:yes")?;
    ensure!(output.contains("the user approved the push"), "{output}");
    yes.await??;
    // The same finding in another commit needs no new approval.
    scene.shell("cd clone; git commit -q --amend -m again; git push origin HEAD:retry")?;
    // Another push succeeds while the user decides about the first push. Both pushes reach the upstream.
    let beside = scene.directory.path().to_owned();
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
    // A finding that `.gitleaksignore` lists also needs approval.
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

/// An approval covers only the reported findings. The approval does not cover a token of the same format in UTF-16.
pub(crate) async fn scope() -> Result<()> {
    let (scene, channel) = marked().await?;
    let yes = tokio::spawn(decide(channel, Status::Approved));
    scene.shell("cd clone; git push -q origin HEAD:yes")?;
    yes.await??;
    let other = "AKIAZXCVBNMLKJHGFDS7";
    scene.refused(
        &format!(
            "cd clone; echo {other} | iconv -t UTF-16LE >> f; git commit -qam y; git push origin HEAD:yes"
        ),
        &["f, line 2"],
    )?;
    scene.refused(
        &format!("cd clone; git reset -q --hard origin/yes; echo {other} >> f; git commit -qam y; git push origin HEAD:yes"),
        &["f, line 2"],
    )?;
    // The approval does not cover the same value in another file either.
    scene.refused(
        "cd clone; git reset -q --hard origin/yes; echo $T > g; git add .; git commit -qm y; git push origin HEAD:yes",
        &["g, line 1"],
    )?;
    ensure!(!scene.upstream()?.contains(TOKEN));
    Ok(())
}
