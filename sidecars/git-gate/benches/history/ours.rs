//! Runs the gate's scan on the complete history, as one push to an empty upstream.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bottle_policy::secret::Secret;
use bottle_scan::{KnownSecrets, Scanner};

use crate::dice::{Dice, WORD};
use crate::findings::PushFindings;
use crate::git::{Git, ReservedFds};
use crate::new_objects::KNOWN;
use crate::push_scan::Detectors;
use crate::refs::Update;
use crate::{push_scan, put};

/// The number of known secrets, which the scanner searches for in every encoding.
const SECRETS: usize = 10;

/// Scans the history and prints each finding as a line of JSON.
pub(crate) fn read_all(repo: &Path) -> Result<()> {
    let fds = ReservedFds::reserve()?;
    let mirror = repo.with_extension("mirror");
    let made = Command::new("git").args(["init", "-q", "--bare"]).arg(&mirror).status()?;
    ensure!(made.success(), "git init");
    fs::create_dir_all(mirror.join(KNOWN))?;
    let _ = symlink("../objects/pack", mirror.join(KNOWN).join("pack"));
    let tip = fs::read_to_string(repo.join("refs/heads/main"))?;
    let (old, name) = ("0".repeat(40), "refs/heads/main".to_owned());
    let update = Update { old, new: tip.trim().to_owned(), name };
    let mut dice = Dice::new();
    let secrets: Vec<Secret> = (0..SECRETS).map(|_| Secret::new(dice.text(WORD, 40))).collect();
    let scanner = Scanner::outbound(Arc::new(KnownSecrets::new(&secrets)?));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let objects = repo.join("objects").to_string_lossy().into_owned();
    let mut findings = PushFindings::default();
    runtime
        .block_on(push_scan::read_push(
            &Git::new(&mirror),
            &objects,
            &[update],
            Detectors { scanner: &scanner, has_rules: false },
            &fds,
            &mut findings,
        ))
        .map_err(|why| anyhow::anyhow!(why))?;
    ensure!(!findings.more, "more findings than a push may have");
    for found in findings.found {
        let path = (found.location != "the commit's message").then_some(found.location);
        let line = serde_json::json!({
            "commit": found.commit.context("a commit")?, "path": path, "line": found.line, "rule": found.rule,
        });
        put(&line.to_string());
    }
    Ok(())
}
