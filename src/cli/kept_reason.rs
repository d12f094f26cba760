//! Explains why files or a conversation of an ended bottle are kept, and how to retrieve the bottle's work.

use bottle_instance::record::KeptFor;
use bottle_instance::work::Unsaved;
use bottle_keeper::protocol::{Ended, Retrieval};
use bottle_policy::names::Slug;

use crate::console::output::{counted, one_line};

/// Returns the lines that explain why the files of a bottle are kept, with the commands that retrieve the bottle's
/// work.
pub(crate) fn lines(slug: &Slug, ended: &Ended) -> Vec<String> {
    let why = match &ended.kept_for {
        Some(KeptFor::Unsaved(unsaved)) => return of_unsaved(slug, unsaved, ended.retrieval),
        Some(KeptFor::Failure) => "its agent failed; its files are kept, because it had a conversation",
        Some(KeptFor::Task) => "its files are kept for its task; `bottle env rm` deletes them",
        Some(KeptFor::Conversation) => "no file changed; its conversation is kept",
        None => return Vec::new(),
    };
    vec![why.to_owned()]
}

fn of_unsaved(slug: &Slug, unsaved: &Unsaved, retrieval: Retrieval) -> Vec<String> {
    let Unsaved { work, unknown, .. } = unsaved;
    let mut lines = Vec::new();
    match unknown {
        _ if *work => lines.push("its workspace has work, which is kept".to_owned()),
        Some(why) => lines.push(format!("its files are kept, because they may have work: {}", one_line(why))),
        None => {}
    }
    if unsaved.is_work() {
        lines.push(match retrieval {
            Retrieval::Repository => format!(
                "`bottle diff {slug}` shows it; `bottle apply {slug}` and `bottle pull {slug}` bring it out"
            ),
            Retrieval::Directory => {
                format!("`bottle diff {slug}` shows it; `bottle apply {slug}` brings it out")
            }
            Retrieval::Files => copies_out(slug),
        });
    }
    if let Some(ignored) = ignored(unsaved) {
        let kept = if unsaved.ignored == 1 {
            "is kept, and no pull brings it"
        } else {
            "are kept, and no pull brings them"
        };
        lines.push(format!("{ignored} {kept} out"));
        if !unsaved.is_work() || retrieval != Retrieval::Files {
            lines.push(copies_out(slug));
        }
    }
    lines
}

fn copies_out(slug: &Slug) -> String {
    format!("`bottle cp {slug}:. DIRECTORY` copies the workspace out")
}

/// Returns the number and names of the changed files that git ignores. Returns `None` if git ignores no changed file.
pub(crate) fn ignored(unsaved: &Unsaved) -> Option<String> {
    let Unsaved { ignored, named, .. } = unsaved;
    if *ignored == 0 {
        return None;
    }
    let mut names: Vec<String> = named.iter().map(|name| one_line(name)).collect();
    if let Some(more) = ignored.checked_sub(names.len() as u64).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    Some(format!("{} that git ignores ({})", counted(*ignored, "changed file"), names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_only_commands_that_work() {
        let slug: Slug = "one".parse().expect("a slug");
        let of = |work, ignored, unknown: Option<&str>, retrieval| {
            let named = if ignored > 0 { vec![".env".to_owned()] } else { Vec::new() };
            let unknown = unknown.map(str::to_owned);
            of_unsaved(&slug, &Unsaved { work, ignored, named, unknown }, retrieval).join("\n")
        };
        insta::assert_snapshot!(
            [
                of(true, 0, None, Retrieval::Repository),
                of(true, 0, None, Retrieval::Directory),
                of(true, 0, None, Retrieval::Files),
                of(true, 1, None, Retrieval::Repository),
                of(false, 3, None, Retrieval::Repository),
                of(false, 1, None, Retrieval::Files),
                of(false, 0, Some("pid 1 does not answer"), Retrieval::Repository),
            ]
            .join("\n---\n"),
            @r"
        its workspace has work, which is kept
        `bottle diff one` shows it; `bottle apply one` and `bottle pull one` bring it out
        ---
        its workspace has work, which is kept
        `bottle diff one` shows it; `bottle apply one` brings it out
        ---
        its workspace has work, which is kept
        `bottle cp one:. DIRECTORY` copies the workspace out
        ---
        its workspace has work, which is kept
        `bottle diff one` shows it; `bottle apply one` and `bottle pull one` bring it out
        1 changed file that git ignores (.env) is kept, and no pull brings it out
        `bottle cp one:. DIRECTORY` copies the workspace out
        ---
        3 changed files that git ignores (.env, 2 more) are kept, and no pull brings them out
        `bottle cp one:. DIRECTORY` copies the workspace out
        ---
        1 changed file that git ignores (.env) is kept, and no pull brings it out
        `bottle cp one:. DIRECTORY` copies the workspace out
        ---
        its files are kept, because they may have work: pid 1 does not answer
        `bottle diff one` shows it; `bottle apply one` and `bottle pull one` bring it out
        "
        );
    }
}
