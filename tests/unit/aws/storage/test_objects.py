from pathlib import Path

import pytest

from cloudgpu.aws.s3 import (
    S3Location,
    UploadResult,
    list_objects,
    presign_urls,
    put_files,
    require_bucket,
)
from cloudgpu.aws.session.session import Session
from cloudgpu.errors import BadRequestError, StateError


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    root = tmp_path / "digits"
    (root / "sub dir").mkdir(parents=True)
    (root / "a.csv").write_text("1,2\n")
    (root / "sub dir" / "ü.csv").write_text("3\n")
    (root / "empty").touch()
    (root / "dead").symlink_to("nowhere")
    return root


def test_upload_sends_only_new_or_changed_files(session: Session, digits: Path) -> None:
    assert put_files(session, "s3://data/digits/", digits) == UploadResult(sent=3, sent_bytes=6, reused=0)
    found = list_objects(session, "s3://data/digits")
    assert [(one.key, one.relative, one.size) for one in found] == [
        ("digits/a.csv", "a.csv", 4),
        ("digits/empty", "empty", 0),
        ("digits/sub dir/ü.csv", "sub dir/ü.csv", 2),
    ]
    assert put_files(session, "s3://data/digits", digits) == UploadResult(sent=0, sent_bytes=0, reused=3)
    (digits / "a.csv").write_text("9,9\n")
    assert put_files(session, "s3://data/digits", digits) == UploadResult(sent=1, sent_bytes=4, reused=2)


def test_bucket_is_created_in_session_region(session: Session, digits: Path) -> None:
    west = session.in_region("us-west-2")
    put_files(west, "s3://westdata", digits)
    where = west.client("s3").get_bucket_location(Bucket="westdata")["LocationConstraint"]
    assert where == "us-west-2"
    assert list_objects(west, "s3://westdata")[0].relative == "a.csv"


def test_prefix_matches_only_up_to_slash(session: Session, digits: Path) -> None:
    put_files(session, "s3://data/digits", digits)
    put_files(session, "s3://data/digits-2", digits)
    assert {one.key.split("/")[0] for one in list_objects(session, "s3://data/digits")} == {"digits"}


def test_single_object_is_listed_by_full_url(session: Session, digits: Path) -> None:
    put_files(session, "s3://data/digits", digits)
    (one,) = list_objects(session, "s3://data/digits/a.csv")
    assert one.relative == "a.csv"


def test_missing_bucket_is_reported_with_similar_name(session: Session, digits: Path) -> None:
    put_files(session, "s3://datasets/digits", digits)
    require_bucket(session, "s3://datasets/empty-prefix")
    with pytest.raises(BadRequestError, match=r"there is no bucket dataset$") as caught:
        require_bucket(session, "s3://dataset/digits")
    assert "s3://datasets" in caught.value.hint


def test_listing_reads_all_pages(scripted) -> None:
    def entry(number: int) -> dict[str, object]:
        return {"Key": f"x/{number:04}", "Size": number, "ETag": '"e"'}

    s3 = scripted.stub("s3")
    first = {"Contents": [entry(1), entry(2)], "IsTruncated": True, "NextContinuationToken": "more"}
    s3.add_response("list_objects_v2", first, {"Bucket": "many", "Prefix": "x"})
    s3.add_response(
        "list_objects_v2", {"Contents": [entry(3)]}, {"Bucket": "many", "Prefix": "x", "ContinuationToken": "more"}
    )
    assert [one.size for one in list_objects(scripted, "s3://many/x")] == [1, 2, 3]
    scripted.done()


def test_presigned_urls_use_sigv4_and_expire(session: Session) -> None:
    links = presign_urls(session, "s3://data/digits", ["digits/a b.csv"], expires_s=600)
    link = links["digits/a b.csv"]
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in link
    assert "X-Amz-Expires=600" in link
    assert "a%20b.csv" in link


def test_presigned_url_expiry_above_s3_limit_is_rejected(session: Session) -> None:
    with pytest.raises(BadRequestError, match="604800"):
        presign_urls(session, "s3://data", ["x"], expires_s=604801)


def test_missing_bucket_error_suggests_nearest_name(session: Session, digits: Path) -> None:
    put_files(session, "s3://datasets", digits)
    with pytest.raises(BadRequestError, match="no bucket dataset") as caught:
        list_objects(session, "s3://dataset/digits")
    assert caught.value.hint == "did you mean s3://datasets?"


def test_missing_prefix_error_suggests_nearest_prefix(session: Session, digits: Path) -> None:
    put_files(session, "s3://data/uci/digits", digits)
    with pytest.raises(BadRequestError, match="there are no objects under s3://data/uci/digit") as caught:
        list_objects(session, "s3://data/uci/digit")
    assert caught.value.hint == "did you mean s3://data/uci/digits?"


@pytest.mark.parametrize("url", ["", "data", "s3://", "https://data/x", "s3:///x"])
def test_invalid_s3_url_is_rejected(url: str) -> None:
    with pytest.raises(BadRequestError, match="not an S3 URL"):
        S3Location.parse(url)


def test_unreadable_file_is_named_in_upload_error(
    session: Session, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("cloudgpu.aws.s3._digest", refuse)  # root reads everything, so no mode forbids it
    with pytest.raises(StateError, match=r"a\.csv"):
        put_files(session, "s3://data", digits)
