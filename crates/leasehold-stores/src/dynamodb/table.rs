//! The table: created when it is missing, and examined by `doctor`.

use super::DynamoStore;
use super::error::CallError;
use crate::phase::Phase;
use leasehold_core::store::{Class, Survey};
use leasehold_core::{Error, Kind, Result};
use serde_json::{Value, json};
use std::time::Duration;

/// How long creating the table may take.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(250);

impl DynamoStore {
    /// Creates the table, or waits for another process that does.
    pub(super) async fn make_table(&self) -> Result<()> {
        let question = json!({
            "TableName": self.table,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [
                { "AttributeName": "shelf", "AttributeType": "S" },
                { "AttributeName": "name", "AttributeType": "S" },
            ],
            "KeySchema": [
                { "AttributeName": "shelf", "KeyType": "HASH" },
                { "AttributeName": "name", "KeyType": "RANGE" },
            ],
        });
        match self.endpoint.call("CreateTable", &question, Phase::Writing, &self.table).await {
            Ok(_) => {}
            Err(CallError::Error(error)) => match error.kind() {
                Kind::Unsupported => {
                    let message = format!("table `{}` is missing; make it: {}", self.table, self.by_hand());
                    return Err(Error::new(Kind::Unsupported, message).with_source(error));
                }
                // Another process was first, or the answer was lost: the loop below finds
                // out whether there is a table. The record was certainly not written.
                Kind::Unavailable | Kind::Indeterminate => {}
                _ => return Err(error),
            },
            Err(CallError::Mismatch | CallError::NoTable(_)) => {}
        }
        let active = async {
            while !self.is_active().await? {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, active).await.unwrap_or_else(|_| {
            let message = format!("table `{}` is still being made; try again in a minute", self.table);
            Err(Error::new(Kind::Unavailable, message))
        })
    }

    async fn is_active(&self) -> Result<bool> {
        match self.ask("DescribeTable", &json!({ "TableName": self.table })).await {
            Ok((answer, _)) => Ok(answer["Table"]["TableStatus"] == "ACTIVE"),
            // A table that was just created may not be visible everywhere yet.
            Err(CallError::NoTable(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The command by which a person creates the table.
    fn by_hand(&self) -> String {
        format!(
            "aws dynamodb create-table --region {} --table-name {} --billing-mode PAY_PER_REQUEST \
             --attribute-definitions AttributeName=shelf,AttributeType=S AttributeName=name,AttributeType=S \
             --key-schema AttributeName=shelf,KeyType=HASH AttributeName=name,KeyType=RANGE",
            self.endpoint.region(),
            self.table
        )
    }

    pub(super) async fn look(&self) -> Result<Survey> {
        let question = json!({ "TableName": self.table });
        let table = match self.ask("DescribeTable", &question).await {
            Ok((answer, _)) => answer["Table"].clone(),
            Err(CallError::NoTable(_)) => {
                return Ok(Survey::plain(Class::A).fine("table", "not made yet; the first write makes it"));
            }
            Err(error) => return Err(error.into()),
        };
        let mut survey = replicas(&table);
        survey = if table["DeletionProtectionEnabled"] == true {
            survey.fine("deletion protection", "on")
        } else {
            let advice = format!(
                "turn it on, for a table that is deleted takes all epochs along: aws dynamodb update-table --region {} \
                 --table-name {} --deletion-protection-enabled",
                self.endpoint.region(),
                self.table
            );
            survey.advise("deletion protection", "off", advice)
        };
        survey = self.expiry(survey, &question).await?;
        self.backups(survey, &question).await
    }

    /// An item that expires takes its epoch with it.
    async fn expiry(&self, survey: Survey, question: &Value) -> Result<Survey> {
        let setting = "time to live";
        let Ok((answer, _)) = self.ask("DescribeTimeToLive", question).await else {
            return Ok(survey.fine(setting, "not known: the endpoint did not say"));
        };
        let found = &answer["TimeToLiveDescription"];
        let status = found["TimeToLiveStatus"].as_str().unwrap_or("DISABLED");
        if status == "DISABLED" {
            return Ok(survey.fine(setting, "off"));
        }
        let attribute = found["AttributeName"].as_str().unwrap_or("?");
        let advice = "turn it off: records must never expire. Leasehold sets no such attribute, so nothing does yet";
        Ok(survey.advise(setting, format!("{status} on `{attribute}`"), advice))
    }

    async fn backups(&self, survey: Survey, question: &Value) -> Result<Survey> {
        let setting = "point-in-time recovery";
        let Ok((answer, _)) = self.ask("DescribeContinuousBackups", question).await else {
            return Ok(survey.fine(setting, "not known: the endpoint did not say"));
        };
        let found = &answer["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"];
        let status = found["PointInTimeRecoveryStatus"].as_str().unwrap_or("DISABLED");
        if status == "DISABLED" {
            return Ok(survey.fine(setting, "off"));
        }
        let note = format!("{status}; a restored table has old epochs: advance every lease before use");
        Ok(survey.fine(setting, note))
    }
}

/// Replicas that accept writes independently may both grant.
fn replicas(table: &Value) -> Survey {
    let setting = "global table";
    let regions: Vec<&str> = table["Replicas"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|replica| replica["RegionName"].as_str())
        .collect();
    if regions.is_empty() {
        return Survey::plain(Class::A).fine(setting, "no");
    }
    let found = format!("replicas in {}", regions.join(", "));
    if table["MultiRegionConsistency"] == "STRONG" {
        return Survey::plain(Class::A).fine(setting, format!("{found}, strongly consistent"));
    }
    let advice = "replicas may re-issue an epoch: use one region for all holders, or a table without replicas, or \
                  multi-Region strong consistency";
    Survey::plain(Class::B).advise(setting, found, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_make_it_class_b_unless_they_agree() {
        for (table, class, advised) in [
            (json!({}), Class::A, false),
            (json!({ "Replicas": [] }), Class::A, false),
            (json!({ "Replicas": [{ "RegionName": "eu-west-1" }] }), Class::B, true),
            (
                json!({ "Replicas": [{ "RegionName": "eu-west-1" }], "MultiRegionConsistency": "EVENTUAL" }),
                Class::B,
                true,
            ),
            (
                json!({ "Replicas": [{ "RegionName": "eu-west-1" }], "MultiRegionConsistency": "STRONG" }),
                Class::A,
                false,
            ),
        ] {
            let survey = replicas(&table);
            assert_eq!((survey.class, survey.remarks[0].advice.is_some()), (class, advised), "{table}");
        }
    }
}
