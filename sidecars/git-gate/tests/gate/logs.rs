//! Tests the logs of every crate at every level. The logs must contain the spans of pushes and fetches, and no secret.

use std::fs;

use anyhow::{Context, Result, ensure};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::scene::{KEY, SECRET, Scene, TOKEN};

/// An environment variable that makes a gate write its complete log to standard error, without redaction.
const ASKED: &str = "LOG_EVERYTHING";

/// Replaces the gate's logging if [`ASKED`] is set.
pub(crate) fn start_if_asked() {
    if std::env::var_os(ASKED).is_some() {
        let all =
            tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_span_events(FmtSpan::FULL);
        all.with_ansi(false).with_writer(std::io::stderr).init();
    }
}

pub(crate) async fn levels() -> Result<()> {
    let mut scene = Scene::new()?;
    let log = scene.at("log");
    let script = format!("exec 2>>{} && exec env {ASKED}=1 \"$@\"", log.display());
    scene.wrapper = ["sh", "-c", &script, "sh"].map(str::to_owned).into();
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m fine; git push -q origin HEAD:x",
    )?;
    for (change, refs) in [
        ("echo $SECRET > f", "HEAD:y"),
        ("echo $T > f", "HEAD:y HEAD:z"),
        ("echo fine > $T", "HEAD:y"),
        ("git commit -q --allow-empty -m $SECRET", "HEAD:y"),
        // git itself prints the name of the ref, so its standard error is redirected.
        ("echo fine > f", "HEAD:$SECRET 2> e || { echo refused >&2; exit 1; }"),
    ] {
        let script = format!(
            "cd clone; {change}; git add .; git commit -q --allow-empty -m fine; git push origin {refs}"
        );
        scene.refused(&script, &["refused"])?;
        scene.shell("cd clone; git reset -q --hard origin/main; git clean -qfd")?;
    }
    drop(scene.gate.take());
    let text = fs::read_to_string(log)?;
    for line in [
        "fetch{repository=\"tool\" refs=1}",
        "push{repository=\"tool\" refs=1}: bottle_git_gate::push: decided verdict=\"accepted\"",
        "push{repository=\"tool\" refs=1}: bottle_git_gate::push: scanned read=true findings=1",
        "push{repository=\"tool\" refs=2}: bottle_git_gate::push: decided verdict=\"refused\"",
    ] {
        ensure!(text.contains(line), "no {line}: {text}");
    }
    let private = fs::read_to_string(scene.at("client"))?;
    let private = private.lines().nth(1).context("a key")?;
    for secret in [SECRET, TOKEN, KEY, private] {
        let at = text.lines().find(|line| line.contains(secret));
        ensure!(at.is_none(), "{secret} is in the log: {at:?}");
    }
    Ok(())
}
