//! Decides which push options the gate forwards (git-push(1), `--push-option`).

/// The reason why the gate refuses a push option. The `Display` text is a part of a sentence for the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OptionError {
    #[error("a push option is not UTF-8")]
    Encoding,
    #[error("a push option looks like it contains a secret; leave it out")]
    Secret,
    #[error("the push option `{0}` would merge the push into another branch; the user merges it")]
    Merges(String),
    #[error("the push option `{0}` would change the settings of the repository; leave it out")]
    Changes(String),
    #[error(
        "the push option `{0}` would turn off a check of the upstream, or approve the push; leave it out"
    )]
    Approves(String),
}

/// Refuses options that move refs which the push does not name, that change the repository's settings, or that skip a
/// check or an approval in the upstream. The ref rules would not apply to these effects.
///
/// Sources: GitLab (`merge_request.*`, `secret_push_protection.skip_all`, `secret_detection.skip_all`), Gerrit
/// (`submit`, `label`, `skip-validation`, also as `%submit` after a ref), Gitea and Forgejo (`repo.private`,
/// `repo.template`).
pub(crate) fn check(option: &str) -> Result<(), OptionError> {
    let name = option.split('=').next().unwrap_or_default().trim().to_ascii_lowercase();
    match name.as_str() {
        "submit" | "merge_request.merge_when_pipeline_succeeds" | "merge_request.auto_merge" => {
            Err(OptionError::Merges(name))
        }
        "l" | "label" | "skip-validation" => Err(OptionError::Approves(name)),
        name if name.starts_with("secret_push_protection.") || name.starts_with("secret_detection.") => {
            Err(OptionError::Approves(name.to_owned()))
        }
        name if name.starts_with("repo.") => Err(OptionError::Changes(name.to_owned())),
        _ => Ok(()),
    }
}

/// Checks the options that Gerrit reads after the name of a magic ref, such as `refs/for/main%submit,topic=x`.
pub(crate) fn check_ref(name: &str) -> Result<(), OptionError> {
    let options = name.strip_prefix("refs/for/").and_then(|name| name.split_once('%'));
    options.map_or(Ok(()), |(_, options)| options.split(',').try_for_each(check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_options_that_merge_or_change_the_repository() {
        for (option, part) in [
            ("merge_request.create", None),
            ("merge_request.target=main", None),
            ("ci.skip", None),
            ("topic=submit", None),
            ("merge_request.merge_when_pipeline_succeeds", Some("merge")),
            ("Merge_Request.Auto_Merge=true", Some("merge")),
            ("submit", Some("merge")),
            ("repo.private=false", Some("settings")),
            ("l=Code-Review+2", Some("approve")),
            ("label=Verified+1", Some("approve")),
            ("skip-validation", Some("approve")),
            ("secret_push_protection.skip_all", Some("approve")),
            ("Secret_Detection.skip_all=true", Some("approve")),
            ("labels", None),
            ("merge_request.label=bug", None),
        ] {
            let refused = check(option).err().map(|why| why.to_string());
            assert_eq!(refused.is_some(), part.is_some(), "{option}");
            assert!(refused.unwrap_or_default().contains(part.unwrap_or_default()), "{option}");
        }
        for (name, passes) in [
            ("refs/for/main", true),
            ("refs/for/main%topic=x,r=a@b", true),
            ("refs/for/main%topic=x,submit", false),
            ("refs/heads/a%submit", true),
        ] {
            assert_eq!(check_ref(name).is_ok(), passes, "{name}");
        }
    }
}
