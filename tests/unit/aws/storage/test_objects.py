from pathlib import Path

import pytest

from cloudgpu.aws.session.session import Session
from cloudgpu.aws.storage.objects import S3Location, UploadResult, list_objects, presign_urls, put_files
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


def test_put_list_and_put_again(session: Session, digits: Path) -> None:
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


def test_buckets_of_other_regions(session: Session, digits: Path) -> None:
    west = session.in_region("us-west-2")
    put_files(west, "s3://westdata", digits)
    where = west.client("s3").get_bucket_location(Bucket="westdata")["LocationConstraint"]
    assert where == "us-west-2"
    assert list_objects(west, "s3://westdata")[0].relative == "a.csv"


def test_a_prefix_ends_at_a_slash(session: Session, digits: Path) -> None:
    put_files(session, "s3://data/digits", digits)
    put_files(session, "s3://data/digits-2", digits)
    assert {one.key.split("/")[0] for one in list_objects(session, "s3://data/digits")} == {"digits"}


def test_one_object_by_its_own_address(session: Session, digits: Path) -> None:
    put_files(session, "s3://data/digits", digits)
    (one,) = list_objects(session, "s3://data/digits/a.csv")
    assert one.relative == "a.csv"


def test_more_objects_than_a_page(scripted) -> None:
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


def test_links_are_signed_the_new_way_and_only_for_their_time(session: Session) -> None:
    links = presign_urls(session, "s3://data/digits", ["digits/a b.csv"], expires_s=600)
    link = links["digits/a b.csv"]
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in link
    assert "X-Amz-Expires=600" in link
    assert "a%20b.csv" in link


def test_links_cannot_live_longer_than_s3_allows(session: Session) -> None:
    with pytest.raises(BadRequestError, match="604800"):
        presign_urls(session, "s3://data", ["x"], expires_s=604801)


def test_a_missing_bucket_names_the_nearest(session: Session, digits: Path) -> None:
    put_files(session, "s3://datasets", digits)
    with pytest.raises(BadRequestError, match="no bucket dataset") as caught:
        list_objects(session, "s3://dataset/digits")
    assert caught.value.hint == "did you mean s3://datasets?"


def test_a_missing_prefix_names_the_nearest(session: Session, digits: Path) -> None:
    put_files(session, "s3://data/uci/digits", digits)
    with pytest.raises(BadRequestError, match="there are no objects under s3://data/uci/digit") as caught:
        list_objects(session, "s3://data/uci/digit")
    assert caught.value.hint == "did you mean s3://data/uci/digits?"


@pytest.mark.parametrize("url", ["", "data", "s3://", "https://data/x", "s3:///x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadRequestError, match="not an S3 URL"):
        S3Location.parse(url)


def test_a_file_that_cannot_be_read(session: Session, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("cloudgpu.aws.storage.objects._digest", refuse)  # root reads everything, so no mode forbids it
    with pytest.raises(StateError, match=r"a\.csv"):
        put_files(session, "s3://data", digits)
