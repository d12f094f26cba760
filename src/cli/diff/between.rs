//! Compares the workspaces of two bottles.

use bottle_host::Host;
use bottle_lib::connect::open_files;
use bottle_lib::work::{ComparedPair, Form, Pairs, document_of_pairs};
use bottle_policy::names::Slug;

use super::print;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::progress;

/// Shows how the workspace of the second bottle differs from the workspace of the first bottle.
///
/// # Errors
/// Returns a [`CliError`] if one of the bottles cannot be used, or if git fails.
pub(super) async fn show(
    [slug, other]: [&Slug; 2],
    directory: Option<&str>,
    form: Form,
    host: &Host,
    output: &Output,
) -> Result<u8, CliError> {
    if slug == other {
        return Err(CliError::usage("cannot compare a bottle with itself")
            .about(slug)
            .hint(format!("`bottle diff {slug}` shows its changes")));
    }
    let (record, channel) = open_files(host, slug, |_| Ok(())).await?;
    let (other_record, other_channel) = open_files(host, other, |_| Ok(())).await?;
    let pairs = Pairs::of(host, [&record, &other_record], directory)?;
    let comparing = async |_| Ok(pairs.compare(host, [&channel, &other_channel], form).await?);
    let compared = progress::with_progress("comparing", "nothing was changed", output, comparing).await?;
    let left_out = |pair: &ComparedPair| -> Vec<String> {
        pair.left_out.iter().flat_map(|left_out| left_out.warnings(&pair.name, "compared")).collect()
    };
    let left_out: Vec<String> = compared.iter().flat_map(left_out).collect();
    let mut cut = false;
    if output.json {
        output.print_json(&document_of_pairs([slug, other], compared))?;
    } else {
        let mut has_changes = false;
        for pair in compared {
            let printed = print(pair.diff, output)?;
            has_changes |= printed.has_changes;
            cut |= printed.cut;
        }
        if !has_changes {
            output.note("the workspaces are equal");
        }
    }
    output.warn_all(left_out);
    if cut {
        output.warn("the diff is truncated; `bottle cp` copies the files out");
    }
    Ok(exit::DONE)
}
