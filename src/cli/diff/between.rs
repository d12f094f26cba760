//! Compares the workspaces of two bottles.

use bottle_channel::Channel;
use bottle_contract::names::Slug;

use super::{print, text_of, warn_left_out};
use crate::backend::Access;
use crate::cli::connect::connect_or_open_files;
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::git::{Content, Form, LeftOut, Repository, Scratch};
use crate::cli::json_schema;
use crate::cli::output::Output;
use crate::cli::progress;
use crate::cli::pull::record;
use crate::host::Host;
use crate::instance::record::Record;

/// Shows how the workspace of `other` differs from the one of `slug`.
///
/// # Errors
/// [`CliError`] about one of the bottles, or if git fails.
pub(super) async fn show(
    slug: &Slug,
    other: &Slug,
    form: Form,
    host: &Host,
    output: &Output,
) -> Result<u8, CliError> {
    if slug == other {
        return Err(CliError::usage("cannot compare a bottle with itself")
            .about(slug)
            .hint(format!("`bottle diff {slug}` shows its changes")));
    }
    let (record, channel) = open(slug, host).await?;
    let (_, other_channel) = open(other, host).await?;
    let comparing = async |_| compare(host, &record, [(&channel, slug), (&other_channel, other)], form).await;
    let (diff, left_out) =
        progress::with_progress("comparing", "nothing was changed", output, comparing).await?;
    let mut cut = false;
    if output.json {
        let (diff, cut) = text_of(diff);
        output.print_json(&json_schema::Difference {
            slug: slug.to_string(),
            other: Some(other.to_string()),
            base: None,
            diff,
            committed: String::new(),
            cut,
        })?;
    } else {
        cut = print(diff, "the workspaces are equal", output)?;
    }
    left_out.iter().for_each(|left_out| warn_left_out(left_out, "compared", output));
    if cut {
        output.warn("the diff is truncated; `bottle cp` copies the files out");
    }
    Ok(exit::DONE)
}

async fn open(slug: &Slug, host: &Host) -> Result<(Record, Channel), CliError> {
    let opened = async {
        let record = record(host, slug).await?;
        Ok((record, connect_or_open_files(host, slug, Access::Read).await?))
    };
    opened.await.map_err(|error: CliError| error.about_if_unset(slug))
}

async fn compare(
    host: &Host,
    record: &Record,
    bottles: [(&Channel, &Slug); 2],
    form: Form,
) -> Result<(Content, [LeftOut; 2]), CliError> {
    let folder = if record.copied_cwd { &record.cwd } else { &host.cwd };
    let own = Repository::containing(host, folder).await.ok().flatten();
    let head = match &own {
        Some(own) => own.head().await?,
        None => None,
    };
    let scratch = Scratch::create(host, own.as_ref(), head.as_ref()).await?;
    scratch.compare_two(bottles, own.as_ref(), head.as_ref(), form).await
}
