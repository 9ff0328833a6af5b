//! What a bucket's settings mean for the store's promises.

use super::wire::Info;
use leasehold_core::store::Survey;

/// Adds what was found to the survey.
pub(super) fn findings(survey: Survey, bucket: &str, info: &Info) -> Survey {
    let config = &info.config;
    let survey = survey.fine("bucket", bucket);
    let survey = match config.storage.as_str() {
        "memory" => {
            survey.advise("storage", "memory", "a restart forgets every epoch; make the bucket with file storage")
        }
        other => survey.fine("storage", other),
    };
    let survey = match config.num_replicas {
        count @ ..3 => survey.advise(
            "replicas",
            count.to_string(),
            format!("with 3 the loss of a server loses no epoch: `nats stream edit KV_{bucket} --replicas=3`"),
        ),
        count => survey.fine("replicas", count.to_string()),
    };
    let survey = match config.persist_mode.as_str() {
        "async" => survey.advise("persist_mode", "async", "answers come before anything is written; use the default"),
        _ => survey,
    };
    let survey = if config.allow_msg_ttl {
        survey.advise("allow_msg_ttl", "true", "other writers could let records expire; leasehold sets no ttl")
    } else {
        survey.fine("ttl", "none")
    };
    let Some(cluster) = &info.cluster else { return survey };
    let behind = cluster.replicas.iter().filter(|peer| peer.offline || !peer.current).count();
    let survey = survey.fine("leader", cluster.leader.as_deref().unwrap_or("none"));
    if behind == 0 {
        return survey;
    }
    let advice = "bring them back: while too few are current, nothing can be granted";
    survey.advise("replicas that are offline or behind", behind.to_string(), advice)
}
