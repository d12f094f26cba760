//! Compares the workspaces of two bottles.

use bottle_channel::Channel;
use bottle_contract::names::Slug;

use super::{each_root, print, text_of, warn_left_out};
use crate::backend::Access;
use crate::cli::connect::connect_or_open_files;
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::git::{Content, Form, LeftOut, Repository, Root, Scratch};
use crate::cli::json_schema;
use crate::cli::output::{Output, one_line};
use crate::cli::progress;
use crate::cli::pull::record;
use crate::host::Host;
use crate::instance::record::Record;

/// Shows how the workspace of the second bottle differs from the one of the first.
///
/// # Errors
/// [`CliError`] about one of the bottles, or if git fails.
pub(super) async fn show(
    [slug, other]: [&Slug; 2],
    folder: Option<&str>,
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
    let (other_record, other_channel) = open(other, host).await?;
    let roots = Root::of(host, &record, folder)?;
    let others = Root::of(host, &other_record, folder)?;
    require_same_folders(&roots, &others)?;
    let comparing = async |_| {
        let mut all = Vec::new();
        for (root, shown_in) in each_root(roots) {
            let name = root.name.clone();
            let Some(other) = others.iter().find(|other| other.name == name) else { continue };
            let bottles = [(&channel, &root), (&other_channel, other)];
            let (diff, left_out) = compare(host, bottles, (form, shown_in.as_deref())).await?;
            all.push((name, shown_in, diff, left_out));
        }
        Ok(all)
    };
    let all = progress::with_progress("comparing", "nothing was changed", output, comparing).await?;
    let mut document = json_schema::Difference {
        slug: slug.to_string(),
        folders: Vec::new(),
        other: Some(other.to_string()),
        base: None,
        diff: String::new(),
        committed: String::new(),
        cut: false,
    };
    let (mut has_changes, mut skipped) = (false, Vec::new());
    for (name, shown_in, diff, left_out) in all {
        skipped.push((name, left_out));
        if output.json {
            let (text, cut) = text_of(diff);
            document.diff += &text;
            document.cut |= cut;
            let folder = shown_in.map(|name| json_schema::ComparedFolder { name, base: None });
            document.folders.extend(folder);
        } else {
            let printed = print(diff, output)?;
            has_changes |= printed.has_changes;
            document.cut |= printed.cut;
        }
    }
    if output.json {
        output.print_json(&document)?;
    } else if !has_changes {
        output.note("the workspaces are equal");
    }
    for (name, left_out) in &skipped {
        left_out.iter().for_each(|left_out| warn_left_out(name, left_out, "compared", output));
    }
    if document.cut && !output.json {
        output.warn("the diff is truncated; `bottle cp` copies the files out");
    }
    Ok(exit::DONE)
}

/// Refuses workspaces with different folders.
fn require_same_folders(roots: &[Root], others: &[Root]) -> Result<(), CliError> {
    let has = |those: &[Root], root: &Root| those.iter().any(|other| other.name == root.name);
    if roots.iter().all(|root| has(others, root)) && others.iter().all(|other| has(roots, other)) {
        return Ok(());
    }
    let described = |roots: &[Root]| {
        let names: Vec<String> = roots.iter().map(|root| one_line(&root.name)).collect();
        let slug = roots.first().map_or("", |root| root.slug.as_str());
        match names.concat().as_str() {
            "" => format!("the workspace of {slug} is one directory"),
            _ => format!("the workspace of {slug} has the folders {}", names.join(", ")),
        }
    };
    let (one, other) = (described(roots), described(others));
    Err(CliError::state(format!("cannot compare the workspaces: {one}, and {other}"))
        .hint("`--folder FOLDER` compares a folder that both have"))
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
    bottles: [(&Channel, &Root); 2],
    form: (Form, Option<&str>),
) -> Result<(Content, [LeftOut; 2]), CliError> {
    // Without a repository that is known to be the user's, the files are compared without its ignore rules.
    let own = bottles[0].1.repository().ok().flatten();
    let head = own.as_ref().map(Repository::head).transpose()?.flatten();
    let scratch = Scratch::create(host, own.as_ref(), None)?;
    scratch.compare_two(bottles, own.as_ref(), head.as_ref(), form).await
}
