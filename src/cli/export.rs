//! `bottle export`: writes a bottle to an archive for another machine or another backend.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bottle_backend::portable_image::RootKind;
use bottle_backend::{Copied, ProgressSink};
use bottle_host::Host;
use bottle_lib::export::{Archive, ExportOrder};
use bottle_lib::report::Exported;
use bottle_lib::snapshot_selector::SnapshotSelector;
use indicatif::HumanBytes;

use super::candidates;
use super::save_snapshot::fork_point;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};
use crate::console::progress;
use crate::console::runtime::{block_on, blocking};

/// The text that the progress display shows during an export.
const EXPORTING: &str = "exporting";

/// Write a bottle to an archive, to import it on another machine or backend
///
/// The archive contains the bottle's files, its conversation and its manifests, but no secret, certificate
/// authority or canary. The files are scanned for secrets first, and a finding stops the export. The bottle goes
/// on.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// The bottle, as `bottle list` shows it, or SLUG@NAME for one of its snapshots
    #[arg(add = candidates::all_bottles())]
    bottle: SnapshotSelector,
    /// Write the archive to this file; `-` writes to standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    file: PathBuf,
    /// Sign the archive with this home's key, which is made at first use
    #[arg(long)]
    sign: bool,
    /// Export although this rule found a secret; repeat for several rules
    #[arg(long, value_name = "RULE")]
    accept: Vec<String>,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
}

impl Export {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slug = self.bottle.slug.clone();
        block_on(self.export(host, output)).map_err(|error| error.about_if_unset(&slug))
    }

    async fn export(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if is_stdout(&self.file) && io::stdout().is_terminal() {
            return Err(CliError::usage("an archive cannot be written to a terminal")
                .about("--output")
                .hint("name a file, or pipe the output to another program"));
        }
        let notify = &|notice| output.notice(notice);
        let order = self.order();
        let (export, found) = order.clone().begin(host, notify).await?;
        let point = fork_point(found, output).await?;
        let left = "no archive was written";
        let exported = progress::with_progress(EXPORTING, left, output, async |progress| {
            let begun = Instant::now();
            let sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
            let Archive { document, file } = export.write(&point, sink, notify).await?;
            if let Some(archive) = file {
                let copied = blocking(move || copy_to_stdout(archive)).await;
                copied.map_err(|error| order.not_written(error))?;
            }
            Ok(document)
        });
        let exported = exported.await;
        point.release(host, notify).await;
        self.report(&exported?, output)
    }

    fn order(&self) -> ExportOrder {
        ExportOrder {
            bottle: self.bottle.clone(),
            file: (!is_stdout(&self.file)).then(|| self.file.clone()),
            sign: self.sign,
            accept: self.accept.clone(),
            force: self.force,
        }
    }

    fn report(&self, exported: &Exported, output: &Output) -> Result<u8, CliError> {
        if output.json && !is_stdout(&self.file) {
            output.print_json(exported)?;
            return Ok(exit::DONE);
        }
        for finding in &exported.found {
            output.warn(format!(
                "accepted: {}: {} ({})",
                inert(&finding.path),
                inert(&finding.preview),
                finding.rule
            ));
        }
        let file = &exported.file;
        output.note(format!("{} was exported: {}", self.bottle, HumanBytes(exported.bytes)));
        if let Some(key) = &exported.key {
            output.note(format!("signed with {key}"));
        }
        if exported.root == RootKind::Home {
            output.note(
                "its programs are those of this machine: an importer needs the same ones, or an image (`--image`)",
            );
        }
        if !is_stdout(&self.file) {
            output.note(format!("`bottle import {file}` imports it"));
        }
        Ok(exit::DONE)
    }
}

fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Copies the archive to standard output. This function blocks.
fn copy_to_stdout(mut archive: File) -> io::Result<()> {
    let mut out = io::stdout().lock();
    io::copy(&mut archive, &mut out)?;
    out.flush()
}

fn progress_text(copied: Copied, begun: Instant) -> String {
    let millis = begun.elapsed().as_millis().max(1);
    let rate = u64::try_from(u128::from(copied.bytes) * 1000 / millis).unwrap_or(u64::MAX);
    format!("{EXPORTING}: {} read, {}/s", HumanBytes(copied.bytes), HumanBytes(rate))
}
