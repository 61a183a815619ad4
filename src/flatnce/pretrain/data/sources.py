"""Where the files of each set come from, and what their bytes must be.

Sizes and checksums are those published with the sets, by torchvision and by TensorFlow Datasets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Download:
    """One file of the network.

    Arguments:
        urls: Where it is; tried in this order.
        bytes: Its size.
        checksum: Of its bytes, ``algorithm:hex``.
        into: The folder under the root that it is unpacked or put into.
        unpack: Whether it is an archive.
        inner: An archive inside the archive that is to be unpacked in turn, into ``into``.
    """

    urls: tuple[str, ...]
    bytes: int
    checksum: str
    into: str = "."
    unpack: bool = True
    inner: str = ""

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.urls[0].rpartition("/")[2].partition("?")[0]


@dataclass(frozen=True)
class Layout:
    """One official way the files of a set lie on disk.

    Arguments:
        folder: Where, under the root.
        files: What must be there, by path in the folder, and its checksum where one is known.
        downloads: What to fetch to get it; empty if it is only adopted.
    """

    folder: str
    files: Mapping[str, str] = field(repr=False)
    downloads: tuple[Download, ...] = field(default=(), repr=False)


def _sha256(*files: tuple[str, str], ending: str = "") -> dict[str, str]:
    return {file + ending: f"sha256:{digest}" if digest else "" for file, digest in files}


TORONTO = "https://www.cs.toronto.edu/~kriz"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FLOWERS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
VOC = "https://thor.robots.ox.ac.uk/pascal/VOC/voc2007"
VOC_BEFORE = "http://host.robots.ox.ac.uk/pascal/VOC/voc2007"
SUN = "https://vision.princeton.edu/projects/2010/SUN"

CIFAR10_BINARY = Layout(
    "cifar-10-batches-bin",
    _sha256(
        ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ("batches.meta.txt", ""),
    ),
    (
        Download(
            (f"{TORONTO}/cifar-10-binary.tar.gz",),
            170_052_171,
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
)

CIFAR10_PYTHON = Layout(
    "cifar-10-batches-py",
    {
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
        "batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
    },
    (
        Download(
            (f"{TORONTO}/cifar-10-python.tar.gz",),
            170_498_071,
            "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
)

CIFAR100_BINARY = Layout(
    "cifar-100-binary",
    {
        "train.bin": "md5:6172c7755cfe09b2fe270c85cebc1b15",
        "test.bin": "md5:4499cfba6c016c1be1438163640a0898",
        "fine_label_names.txt": "",
    },
    (
        Download(
            (f"{TORONTO}/cifar-100-binary.tar.gz",),
            168_513_733,
            "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
)

CIFAR100_PYTHON = Layout(
    "cifar-100-python",
    {
        "train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "md5:7973b15100ade9c7d40fb424638fde48",
    },
    (
        Download(
            (f"{TORONTO}/cifar-100-python.tar.gz",),
            169_001_437,
            "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    ),
)

STL10 = Layout(
    "stl10_binary",
    {
        "train_X.bin": "md5:918c2871b30a85fa023e0c44e0bee87f",
        "train_y.bin": "md5:5a34089d4802c674881badbb80307741",
        "unlabeled_X.bin": "md5:5242ba1fed5e4be9e1e742405eb56ca4",
        "test_X.bin": "md5:7f263ba9f9e0b06b93213547f721ac82",
        "test_y.bin": "md5:36f9794fa4beb8a2c72628de14fa638e",
        "class_names.txt": "",
    },
    (
        Download(
            ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
            2_640_397_119,
            "sha256:f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
        ),
    ),
)

# These stay packed: they are read as they come.
FASHION_FILES = _sha256(
    ("train-images-idx3", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    ("train-labels-idx1", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    ("t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    ("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ending="-ubyte.gz",
)
FASHION_BYTES = (26_421_880, 29_515, 4_422_102, 5148)

FASHION_MNIST = Layout(
    "FashionMNIST/raw",
    FASHION_FILES,
    tuple(
        Download((f"{FASHION}/{file}",), size, checksum, "FashionMNIST/raw", unpack=False)
        for size, (file, checksum) in zip(FASHION_BYTES, FASHION_FILES.items(), strict=True)
    ),
)

FASHION_MNIST_UNPACKED = Layout(
    "FashionMNIST/raw", dict.fromkeys((file.removesuffix(".gz") for file in FASHION_FILES), "")
)

TINY_IMAGENET = Layout(
    "tiny-imagenet-200",
    dict.fromkeys(("wnids.txt", "words.txt", "train", "val/val_annotations.txt"), ""),
    (
        Download(
            (
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            ),
            248_100_043,
            "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        ),
    ),
)

FLOWERS102 = Layout(
    "flowers-102",
    {
        "jpg": "",
        "imagelabels.mat": "md5:e0620be6f572b9609742df49c70aed4d",
        "setid.mat": "md5:a5357ecc9cb78c4bef273ce3793fc85c",
    },
    (
        Download(
            (f"{FLOWERS}/102flowers.tgz",),
            344_862_509,
            "sha256:2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246",
            "flowers-102",
        ),
        Download(
            (f"{FLOWERS}/imagelabels.mat",),
            502,
            "sha256:4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d",
            "flowers-102",
            unpack=False,
        ),
        Download(
            (f"{FLOWERS}/setid.mat",),
            14_989,
            "sha256:46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd",
            "flowers-102",
            unpack=False,
        ),
    ),
)

CALTECH101 = Layout(
    "caltech101",
    {"101_ObjectCategories": "", "101_ObjectCategories/BACKGROUND_Google": ""},
    (
        Download(
            ("https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip?download=1",),
            137_414_764,
            "sha256:331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
            "caltech101",
            inner="caltech-101/101_ObjectCategories.tar.gz",
        ),
    ),
)

VOC2007 = Layout(
    "VOCdevkit/VOC2007",
    dict.fromkeys(
        (
            "JPEGImages",
            "Annotations",
            "ImageSets/Main/train.txt",
            "ImageSets/Main/val.txt",
            "ImageSets/Main/trainval.txt",
            "ImageSets/Main/test.txt",
        ),
        "",
    ),
    (
        Download(
            (f"{VOC}/VOCtrainval_06-Nov-2007.tar", f"{VOC_BEFORE}/VOCtrainval_06-Nov-2007.tar"),
            460_032_000,
            "sha256:7d8cd951101b0957ddfd7a530bdc8a94f06121cfc1e511bb5937e973020c7508",
        ),
        Download(
            (f"{VOC}/VOCtest_06-Nov-2007.tar", f"{VOC_BEFORE}/VOCtest_06-Nov-2007.tar"),
            451_020_800,
            "sha256:6836888e2e01dca84577a849d339fa4f73e1e4f135d312430c4856b5609b4892",
        ),
    ),
)

SUN397 = Layout(
    "SUN397",
    dict.fromkeys(("ClassName.txt", "Training_01.txt", "Testing_01.txt", "a"), ""),
    (
        Download(
            (f"{SUN}/SUN397.tar.gz",),
            39_077_296_924,
            "sha256:f404130965a7ad77bed5ececc71e720ab50f3cc1e1bb257257610d38f3b928ec",
        ),
        Download(
            (f"{SUN}/download/Partitions.zip",),
            18_293_705,
            "sha256:e3311ea5f812d4cc6faef194688343d1111f6cd6f70f2c62f393c2b8d6ba1ec9",
            "SUN397",
        ),
    ),
)
